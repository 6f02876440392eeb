-- A store as evotune 0.1.0 left it.
PRAGMA application_id = 1163284308;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE confirmations (number INTEGER PRIMARY KEY, outcome TEXT NOT NULL, finished_s REAL NOT NULL) STRICT;
INSERT INTO "confirmations" VALUES(0,'{"kind":"ok","fitness":0.45}',1.0);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "meta" VALUES('space','"small"');
INSERT INTO "meta" VALUES('kind','"recorded"');
INSERT INTO "meta" VALUES('state','"finished:trials"');
INSERT INTO "meta" VALUES('settings','{"strategy": "evolution", "seed": 0, "population": 4, "elites": 2, "lookahead": 2, "trials": 3, "minutes": null, "champions": 3}');
CREATE TABLE outcomes (number INTEGER PRIMARY KEY, configuration TEXT NOT NULL, outcome TEXT NOT NULL, finished_s REAL NOT NULL) STRICT;
INSERT INTO "outcomes" VALUES(0,'{"A":1,"B":"x"}','{"kind":"ok","fitness":0.5,"resources":{"time_ms":0.6}}',0.25);
INSERT INTO "outcomes" VALUES(1,'{"A":2,"B":"x"}','{"kind":"nan","reason":"3 elements of out are NaN","flags":["throttled"]}',0.5);
INSERT INTO "outcomes" VALUES(2,'{"A":3,"B":"y"}','{"kind":"ok","fitness":0.25,"fitness_low":0.2,"fitness_high":0.3,"duplicate_of":0,"measurements":[{"case":"c","time_us":1.5,"time_min_us":1.25,"baseline":"sdpa:math","baseline_us":2.5,"speedup":1.6,"speedup_low":1.5,"speedup_high":1.7,"samples":25,"cache":"warm","held_out":false,"state":{},"retakes":0,"throttled":false,"eager_us":null,"eager_baseline_us":null}],"checks":[{"case":"c","inputs":"normal","status":"passed","max_error":1e-07,"max_limit":2e-07,"rms_error":null,"rms_limit":null,"detail":""}]}',0.75);
CREATE TABLE snapshots (told INTEGER PRIMARY KEY, state TEXT NOT NULL) STRICT;
INSERT INTO "snapshots" VALUES(2,'{"strategy": "evolution"}');
COMMIT;

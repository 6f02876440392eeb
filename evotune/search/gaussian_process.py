"""A Gaussian process over configurations: its covariance, the fit, and its posterior.

A configuration is a row of value indices, one a parameter. The correlation of two rows is a product
over parameters of

    (1 - category) * matern32(distance / length) + category * [same value]

So every parameter is a mixture of a smooth axis and a bag of unrelated values, and the data decide
the mixture. GPU kernels have both: more warps change the time gradually, while a tile size that
divides the problem's size stands out from both its neighbours.

`TrialModel` is the process fitted to all trials of a run, which estimates what a choice is worth.
It predicts differences of fitness with their deviations. Its covariance also has a linear part in
figures of each configuration that are known without running it (threads, waves, spills, ...): the
process then explains only the rest. A fitness here is ln(speedup), or -ln(time) on a recorded
space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from evotune.space.search_space import Parameter
from evotune.trial import Configuration, Json, Value

# Configurations as numbers: indices of values for storing them, rows for the models.
Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.int64]  # configurations x axes: places on the axes
Indices: TypeAlias = NDArray[np.unsignedinteger]  # configurations x parameters: indices of values

_FINEST: Final = 1024  # places distinguished on one axis


class Encoder:
    """Turns configurations into indices and rows. Indices are exact. Rows leave out parameters with
    a single value, and quantise an axis to at most 1024 places. `axes` has, for each axis, the
    distance at each difference of places, in widths of the axis. A value outside the domain has the
    last index.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = tuple(parameters)
        self._known: list[dict[Value, int]] = [{} for _ in parameters]
        self._names = [parameter.name for parameter in parameters]
        counts = [p.cardinality + len(p.outside) for p in parameters]
        self._counts = np.array(counts, dtype=np.int64)
        self._used = [i for i, count in enumerate(counts) if count > 1]
        self.axes = [
            _axis_distances(parameters[i].ordered, min(counts[i], _FINEST)) for i in self._used
        ]
        self._type = np.min_scalar_type(int(self._counts.max(initial=1)) - 1).newbyteorder("<")

    def indices(self, configuration: Mapping[str, Value]) -> list[int]:
        """The index of each value in its parameter. Raises ValueError for a value that the
        parameter cannot have."""
        if isinstance(configuration, Configuration):  # a dict is read without Python calls
            configuration = configuration.to_json()
        values = [configuration[name] for name in self._names]
        try:
            return [known[value] for known, value in zip(self._known, values, strict=True)]
        except KeyError:
            for parameter, known, value in zip(self._parameters, self._known, values, strict=True):
                if value not in known:
                    known[value] = _index(parameter, value)
            return self.indices(configuration)

    def no_indices(self) -> Indices:
        """An empty matrix of indices, of the smallest type that can represent every index."""
        return np.empty((0, len(self._parameters)), dtype=self._type)

    def configuration(self, indices: Iterable[int]) -> Configuration:
        """The inverse of `indices`."""
        values = zip(self._parameters, indices, strict=True)
        return Configuration({parameter.name: _value(parameter, i) for parameter, i in values})

    def are_valid(self, indices: Indices) -> bool:
        return bool((indices < self._counts).all())

    def row(self, configuration: Mapping[str, Value]) -> Rows:
        row: Rows = self.rows([self.indices(configuration)])[0]
        return row

    def rows(self, indices: Indices | Sequence[Sequence[int]]) -> Rows:
        places = np.array(indices, dtype=np.int64)[:, self._used]
        for axis, count in enumerate(self._counts[self._used]):
            if count > _FINEST:
                places[:, axis] = places[:, axis] * (_FINEST - 1) // (count - 1)
        return places


def _index(parameter: Parameter, value: Value) -> int:
    if value in parameter.outside:
        return parameter.cardinality
    return parameter.index(value)


def _value(parameter: Parameter, index: int) -> Value:
    if index == parameter.cardinality:
        return parameter.outside[0]
    return parameter.values[index]


def _axis_distances(ordered: bool, count: int) -> Floats:
    return np.arange(count) / (count - 1) if ordered else np.minimum(np.arange(count), 1.0)


_FIT_ROWS: Final = 96  # a fit costs the cube of this
_FIT_STEPS: Final = 80
_LENGTHS: Final = (0.05, 20.0)  # in widths of the axis
_CATEGORIES: Final = (1e-3, 0.98)
_NOISES: Final = (1e-4, 0.5)  # variance of the noise, in variances of the function
_TYPICAL_CATEGORY: Final = -2.5  # log-odds
_TYPICAL_NOISE: Final = 1e-2


@dataclass(frozen=True, slots=True)
class Kernel:
    """The covariance function. `tables[i][d]` is the log correlation along parameter i at an index
    difference of d."""

    lengths: tuple[float, ...]
    categories: tuple[float, ...]
    noise: float
    tables: tuple[Floats, ...]

    def between(self, first: Rows, second: Rows) -> Floats:
        """The matrix of correlations, with a row for each of `first` and a column for each of
        `second`."""
        total = np.zeros((len(first), len(second)))
        for i, table in enumerate(self.tables):
            if len(table) > len(first):
                total += table.take(np.abs(first[:, i, None] - second[None, :, i]))
            else:  # an axis with few places: each place is compared once
                places = np.arange(len(table))
                along = table.take(np.abs(places[:, None] - second[None, :, i]))
                total += along.take(first[:, i], axis=0)
        return np.exp(total)

    def to_json(self) -> Json:
        return [list(self.lengths), list(self.categories), self.noise]

    @classmethod
    def from_json(cls, data: Json, axes: Sequence[Floats]) -> Kernel:
        """The inverse of `to_json`. Raises ValueError or TypeError for other data."""
        lengths, categories, noise = data
        tables = (_table(*found) for found in zip(axes, lengths, categories, strict=True))
        return cls(tuple(lengths), tuple(categories), noise + 0.0, tuple(tables))


def default_kernel(axes: Sequence[Floats]) -> Kernel:
    category = 1 / (1 + math.exp(-_TYPICAL_CATEGORY))
    return Kernel(
        (1.0,) * len(axes),
        (category,) * len(axes),
        _TYPICAL_NOISE,
        tuple(_table(axis, 1.0, category) for axis in axes),
    )


def _table(axis: Floats, length: float, category: float) -> Floats:
    scaled = math.sqrt(3) * axis / length
    table = (1 - category) * (1 + scaled) * np.exp(-scaled)
    table[0] += category
    return np.log(table + 1e-30)


def fit_kernel(
    start: Kernel, axes: Sequence[Floats], rows: Rows, values: Floats, rng: np.random.Generator
) -> tuple[Kernel, float]:
    """The most probable kernel on a seeded random walk from `start`, and its log probability.

    `values` (higher is better, any scale) belong to `rows`. `worth_fitting` chooses the rows among
    many trials.
    """
    differences = [np.abs(rows[:, i, None] - rows[None, :, i]) for i in range(len(axes))]
    lengths, categories, noise = list(start.lengths), list(start.categories), start.noise
    tables = list(start.tables)
    total = sum(
        (t[d] for t, d in zip(tables, differences, strict=True)), np.zeros((len(rows),) * 2)
    )
    best = _evidence(total, noise, values) + _prior(lengths, categories, noise)
    for _ in range(_FIT_STEPS):
        i = int(rng.integers(len(axes) + 1))
        step = rng.normal()
        if i == len(axes):
            trial = _within(noise * math.exp(1.2 * step), _NOISES)
            found = _evidence(total, trial, values) + _prior(lengths, categories, trial)
            if found > best:
                best, noise = found, trial
            continue
        length, category = lengths[i], categories[i]
        if rng.random() < 0.6:
            length = _within(length * math.exp(0.8 * step), _LENGTHS)
        else:
            odds = math.log(category / (1 - category)) + 1.5 * step
            category = _within(1 / (1 + math.exp(-odds)), _CATEGORIES)
        table = _table(axes[i], length, category)
        changed = total + (table - tables[i])[differences[i]]
        old = lengths[i], categories[i]
        lengths[i], categories[i] = length, category
        found = _evidence(changed, noise, values) + _prior(lengths, categories, noise)
        if found > best:
            best, total, tables[i] = found, changed, table
        else:
            lengths[i], categories[i] = old
    return Kernel(tuple(lengths), tuple(categories), noise, tuple(tables)), best


def worth_fitting(values: Floats, rng: np.random.Generator) -> NDArray[np.intp]:
    """The indices of the trials to fit on, at most 96. Half are the best trials, for which the
    kernel must be right. The others are drawn at random."""
    if len(values) <= _FIT_ROWS:
        return np.arange(len(values))
    best = np.argsort(-values, kind="stable")
    others = rng.choice(best[_FIT_ROWS // 2 :], _FIT_ROWS - _FIT_ROWS // 2, replace=False)
    return np.concatenate([best[: _FIT_ROWS // 2], others])


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _evidence(log_correlations: Floats, noise: float, values: Floats) -> float:
    """The log marginal likelihood of a kernel, at its best amplitude."""
    covariance = np.exp(log_correlations)
    covariance[np.diag_indices_from(covariance)] += noise
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return -math.inf
    centred = values - values.mean()
    explained = float(centred @ np.linalg.solve(covariance, centred))
    count = len(values)
    amplitude = (explained + 1) / (count + 1)
    return -0.5 * count * math.log(amplitude) - float(np.log(np.diag(factor)).sum())


def _prior(lengths: Sequence[float], categories: Sequence[float], noise: float) -> float:
    """The log density of a wide prior, so that few evaluations do not lead to extreme kernels."""
    odds = (math.log(c / (1 - c)) - _TYPICAL_CATEGORY for c in categories)
    return (
        -0.5 * sum(math.log(length) ** 2 for length in lengths)
        - 0.5 * sum((o / 2) ** 2 for o in odds)
        - 0.5 * (math.log(noise / _TYPICAL_NOISE) / 2) ** 2
    )


# A transformation of fitness.


@dataclass(frozen=True, slots=True)
class Warp:
    """A transformation of fitness. It leaves a fitness that is at most `knee` below `best`
    unchanged, and compresses larger differences by the logarithm. The order does not change."""

    best: float = 0.0
    knee: float = math.inf  # keeps everything

    @classmethod
    def of_the_slower_half(cls, fitness: Floats) -> Warp:
        best = float(fitness.max())
        return cls(best, best - float(np.median(fitness)) or math.inf)

    def __call__(self, fitness: float) -> float:
        behind = self.best - fitness
        if behind <= self.knee:
            return fitness
        return self.best - self.knee * (1 + math.log(behind / self.knee))

    def all(self, fitness: Iterable[float]) -> Floats:
        return np.array([self(value) for value in fitness])

    def log_slope(self, fitness: Floats) -> float:
        """The sum of the log derivatives of the warp at these values. The log probability of the
        warped values plus this sum can be compared with the log probability of the plain values."""
        behind = np.maximum(self.best - fitness, self.knee)
        return 0.0 if math.isinf(self.knee) else float(np.log(self.knee / behind).sum())


# The posterior over a pool of candidates, updated trial by trial.

_LEAST_VARIANCE: Final = 1e-9
_ROOM: Final = 32  # appended trials before the first growth
_FAR: Final = -30.0  # below this, expected improvement falls with the seventh power of z
_T_PEAK: Final = math.gamma(4.5) / (math.gamma(4) * math.sqrt(8 * math.pi))


class Posterior:
    """The mean and variance of every candidate, given `rows` with `values` (higher is better).

    More trials are appended in the order of their proposals. A pending trial has no value yet. It
    lowers the variance around itself and does not change the means, so the next proposal lies
    elsewhere. Its value can be filled in later, with the same result as if it had been known at
    once. Appending costs rows x candidates, not the cube of the rows.
    """

    def __init__(self, kernel: Kernel, rows: Rows, values: Floats, pool: Rows) -> None:
        self._kernel = kernel
        self._rows = rows
        self._pool = pool
        # All tables lie in one array, so that one operation compares a row along all axes.
        self._tables = np.concatenate([*kernel.tables, np.empty(0)])
        lengths = [0, *(len(table) for table in kernel.tables)]
        self._starts = np.cumsum(lengths[:-1] or [0])[:, None][: len(kernel.tables)]
        self._everything = np.concatenate([rows, pool])
        self._columns: Rows = np.ascontiguousarray(self._everything.T)
        covariance = kernel.between(rows, rows)
        covariance[np.diag_indices_from(covariance)] += kernel.noise
        self._whiten: Floats = np.linalg.inv(np.linalg.cholesky(covariance))
        self._centre = float(values.mean())
        white = self._whiten @ (values - self._centre)
        count = len(values)
        self.amplitude = (float(white @ white) + 1) / (count + 1)
        self._coordinates = self._whiten @ kernel.between(rows, pool)  # rows x candidates
        self._white = white
        self._base_mean: Floats = self._centre + white @ self._coordinates
        self._base_variance: Floats = 1 - np.einsum(
            "ij,ij->j", self._coordinates, self._coordinates
        )
        self.truncate(0)

    @property
    def appended(self) -> int:
        return len(self._own)

    def truncate(self, count: int) -> None:
        """Forgets all but the first `count` appended trials. The result is bit for bit the state
        before the others were appended."""
        if count == 0:
            self._own: list[Floats] = []  # coordinates of each appended trial, then its residue
            # Shapes: appended trials x candidates, and axes x appended trials, with room for more.
            self._extra: Floats = np.empty((_ROOM, self._pool.shape[0]))
            self._appended: Rows = np.zeros((self._pool.shape[1], _ROOM), dtype=np.int64)
            # The appended trials' coordinates along the first trials, and the inverse of the
            # triangle of their coordinates along each other.
            self._along: Floats = np.empty((_ROOM, len(self._rows)))
            self._inverse: Floats = np.zeros((_ROOM, _ROOM))
        else:
            self._own = self._own[:count]
        self.variance: Floats = np.maximum(self._base_variance, _LEAST_VARIANCE)
        for extra in self._extra[:count]:
            self.variance = np.maximum(self.variance - extra**2, _LEAST_VARIANCE)

    def append(self, row: Rows) -> None:
        """Appends a trial without its value, which is an argument of `means`."""
        self._append(row, self._alike(row, self._columns))

    def extend(self, rows: Rows) -> None:
        """Appends many trials at once. The result is bit for bit that of `append` for each, but
        faster."""
        if len(rows) == 1:
            self.append(rows[0])
            return
        for row, alike in zip(rows, self._kernel.between(rows, self._everything), strict=True):
            self._append(row, alike)

    def _append(self, row: Rows, alike: Floats) -> None:
        """Appends a trial; `alike` holds its correlations with all first trials and candidates."""
        count, appended = len(self._rows), len(self._own)
        if appended == len(self._extra):
            self._extra = np.concatenate([self._extra, np.empty_like(self._extra)])
            self._appended = np.concatenate([self._appended, self._appended], axis=1)
            self._along = np.concatenate([self._along, np.empty_like(self._along)])
            self._inverse = np.pad(self._inverse, (0, appended))
        own = np.empty(count + appended + 1)
        first = own[:count] = self._whiten @ alike[:count]
        correlations = self._alike(row, self._appended[:, : max(appended, 2)])[:appended]
        inverse = self._inverse[:appended, :appended]
        rest = own[count:-1] = inverse @ (correlations - self._along[:appended] @ first)
        found = own[:-1]
        residue = math.sqrt(max(1 + self._kernel.noise - float(found @ found), _LEAST_VARIANCE))
        own[-1] = residue
        self._along[appended] = first
        self._inverse[appended, :appended] = -(rest @ inverse) / residue
        self._inverse[appended, appended] = 1 / residue
        along = first @ self._coordinates + rest @ self._extra[:appended]
        extra = (alike[count:] - along) / residue
        self._own.append(own)
        self._extra[appended] = extra
        self._appended[:, appended] = row
        self.variance = np.maximum(self.variance - extra**2, _LEAST_VARIANCE)

    def _alike(self, row: Rows, columns: Rows) -> Floats:
        """The correlations of one row with the rows in `columns` (axes x rows). For two columns or
        more they are the same bits as `Kernel.between` gives."""
        distances = np.abs(columns - row[:, None])
        total: Floats = self._tables.take(distances + self._starts).sum(axis=0)
        return np.exp(total, out=total)

    def means(self, values: list[float | None]) -> Floats:
        """The posterior means of all candidates, given the appended trials' values (None if not
        known yet)."""
        count = len(self._rows)
        white = np.zeros(count + len(values))
        white[:count] = self._white
        for i, (own, value) in enumerate(zip(self._own, values, strict=True)):
            if value is not None:
                known = float(own[:-1] @ white[: count + i])
                white[count + i] = (value - self._centre - known) / own[-1]
        means: Floats = self._base_mean + white[count:] @ self._extra[: len(values)]
        return means

    def deviations(self) -> Floats:
        """The standard deviations of all candidates, in the unit of the values."""
        deviations: Floats = np.sqrt(self.amplitude * self.variance)
        return deviations


def log_expected_improvement(means: Floats, deviations: Floats, best: float) -> Floats:
    """ln E[max(0, f - best)] where (f - mean) / deviation is distributed as Student's t.

    It is Student's t with eight degrees of freedom, which has a closed form, and no normal
    distribution, because the model is sometimes wrong by far more than its standard deviation. A
    normal distribution would prefer a candidate that almost surely fails to one that the model
    predicts to be five deviations too slow.
    """
    z = (means - best) / deviations
    near = np.maximum(z, _FAR)
    share = 8 / (8 + near**2)
    density = _T_PEAK * share**4.5
    series = 1 + share / 2 + 3 / 8 * share**2 + 5 / 16 * share**3
    below = 0.5 + 0.5 * near / np.sqrt(8 + near**2) * series  # the distribution function
    improvement = deviations * ((8 + near**2) / 7 * density + near * below)
    worth: Floats = np.log(improvement) - 7 * np.log(np.minimum(z, _FAR) / _FAR)
    return worth


_MOST_ROWS: Final = 448  # trials that a model is built on, as in the search
_FITS: Final = 3  # each starts from the previous kernel
_LEAST_TRIALS: Final = 4
_LARGEST_GAP: Final = 1.5
"""A fitness that is more than this below the best, in ln, counts as this far below. A configuration
that is ten times slower says nothing about the choices that matter, and would dominate the
scale."""
_FIGURE_SCALE: Final = 0.5  # the prior deviation of a figure's slope, in deviations of the fitness
_THREADS: Final = ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Difference:
    """A predicted difference of fitness, with the standard deviation of the prediction."""

    mean: float
    deviation: float

    @property
    def low(self) -> float:
        return self.mean - 1.96 * self.deviation

    @property
    def high(self) -> float:
        return self.mean + 1.96 * self.deviation

    @property
    def is_sure(self) -> bool:
        """Whether the 95% interval leaves out 0."""
        return abs(self.mean) > 1.96 * self.deviation


class TrialModel:
    """A model of the fitness of valid configurations. `figures`: for each configuration, additional
    numbers, in the same order for all configurations; empty for none."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        configurations: Sequence[Mapping[str, Value]],
        fitness: Sequence[float],
        figures: Sequence[Sequence[float]] = (),
        seed: int = 0,
    ) -> None:
        """Raises ValueError with fewer than four configurations."""
        if len(configurations) < _LEAST_TRIALS:
            raise ValueError(f"a model needs {_LEAST_TRIALS} valid configurations")
        self._encoder = Encoder(parameters)
        rng = np.random.default_rng(seed)
        values = np.array(fitness, dtype=np.float64)
        chosen = _most_telling(values, rng)
        values = np.maximum(values[chosen], values.max() - _LARGEST_GAP)
        rows = self._rows([configurations[i] for i in chosen])
        self._figures = _Figures([figures[i] if figures else () for i in chosen])
        with _THREADS.limit(limits=1, user_api="blas"):
            self._kernel = self._fitted(rows, values, rng)
            self._solve(rows, values)

    def _fitted(self, rows: Rows, values: Floats, rng: np.random.Generator) -> Kernel:
        kernel = default_kernel(self._encoder.axes)
        used = worth_fitting(values, rng)
        for _ in range(_FITS):
            kernel, _ = fit_kernel(kernel, self._encoder.axes, rows[used], values[used], rng)
        return kernel

    def _solve(self, rows: Rows, values: Floats) -> None:
        self._known = rows
        self._linear = self._figures.known
        covariance = self._covariance(rows, self._linear, rows, self._linear)
        covariance[np.diag_indices_from(covariance)] += self._kernel.noise
        self._whiten: Floats = np.linalg.inv(np.linalg.cholesky(covariance))
        self._centre = float(values.mean())
        self._white = self._whiten @ (values - self._centre)
        count = len(values)
        self._amplitude = (float(self._white @ self._white) + 1e-6) / (count + 1)

    def _covariance(self, first: Rows, one: Floats, second: Rows, other: Floats) -> Floats:
        found = self._kernel.between(first, second)
        if one.shape[1]:
            found = found + _FIGURE_SCALE**2 * (one @ other.T)
        return found

    def _rows(self, configurations: Sequence[Mapping[str, Value]]) -> Rows:
        return self._encoder.rows([self._encoder.indices(c) for c in configurations])

    @property
    def noise(self) -> float:
        """The standard deviation of one measurement, in ln, as fitted."""
        return math.sqrt(self._amplitude * self._kernel.noise)

    def knows(self, configuration: Mapping[str, Value]) -> bool:
        """Whether each value is in its parameter's domain."""
        try:
            self._encoder.indices(configuration)
        except (ValueError, KeyError):
            return False
        return True

    def expected(self, configuration: Mapping[str, Value], figures: Sequence[float] = ()) -> float:
        """The predicted fitness. For a measured configuration it lies between the measurement and
        its neighbours' fitness."""
        rows = self._rows([configuration])
        linear = self._figures.of([figures], 1)
        with _THREADS.limit(limits=1, user_api="blas"):
            between = self._covariance(self._known, self._linear, rows, linear)
            return self._centre + float((self._white @ (self._whiten @ between))[0])

    def contrasts(
        self,
        configurations: Sequence[Mapping[str, Value]],
        weights: NDArray[np.float64],
        figures: Sequence[Sequence[float]] = (),
    ) -> list[Difference]:
        """Weighted sums of the predicted fitness of `configurations`. `weights` has a row for each
        sum and a column for each configuration; each row sums to 0."""
        rows = self._rows(configurations)
        linear = self._figures.of(figures, len(rows))
        with _THREADS.limit(limits=1, user_api="blas"):
            between = self._covariance(self._known, self._linear, rows, linear)
            coordinates = self._whiten @ between
            means = weights @ (self._white @ coordinates)
            projected = weights @ coordinates.T
            own = weights @ self._covariance(rows, linear, rows, linear)
        variances = np.einsum("ij,ij->i", own, weights) - np.einsum(
            "ij,ij->i", projected, projected
        )
        deviations = np.sqrt(self._amplitude * np.maximum(variances, 0.0))
        return [Difference(float(m), float(d)) for m, d in zip(means, deviations, strict=True)]

    def changes(
        self,
        start: Mapping[str, Value],
        changed: Sequence[Mapping[str, Value]],
        figures: Sequence[Sequence[float]] = (),
    ) -> list[Difference]:
        """The predicted fitness of each changed configuration minus that of `start`. The first of
        the `figures` are those of `start`."""
        if not changed:
            return []
        weights = np.concatenate([-np.ones((len(changed), 1)), np.eye(len(changed))], axis=1)
        return self.contrasts([start, *changed], weights, figures)


class _Figures:
    """Figures in deviations from their mean over the known configurations."""

    def __init__(self, known: Sequence[Sequence[float]]) -> None:
        table = np.array(known, dtype=np.float64).reshape(len(known), len(known[0]))
        self._mean = table.mean(axis=0)
        self._spread = table.std(axis=0)
        self._used = self._spread > 1e-9
        self.known: Floats = self._scaled(table)

    def _scaled(self, table: Floats) -> Floats:
        if not len(self._mean):
            return np.empty((len(table), 0))
        used = self._used
        scaled: Floats = (table[:, used] - self._mean[used]) / self._spread[used]
        return scaled

    def of(self, figures: Sequence[Sequence[float]], count: int) -> Floats:
        if not len(self._mean):
            return np.empty((count, 0))
        if len(figures) != count:
            return np.zeros((count, int(self._used.sum())))
        return self._scaled(np.array(figures, dtype=np.float64))


def _most_telling(fitness: Floats, rng: np.random.Generator) -> NDArray[np.intp]:
    """The rows of the trials that the model uses: all, or if there are too many the best ones for
    one half and random ones for the other.
    """
    if len(fitness) <= _MOST_ROWS:
        return np.arange(len(fitness))
    best = np.argsort(-fitness, kind="stable")
    half = _MOST_ROWS // 2
    return np.concatenate([best[:half], rng.choice(best[half:], _MOST_ROWS - half, replace=False)])

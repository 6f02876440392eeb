// The whole page: a heading, with several runs a comparison of them, and one run in full.

(function () {
  const root = document.documentElement;
  const report = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const darkNow = window.matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = darkNow.matches ? "dark" : "light";
  let chosen = false; // by the reader, whatever the system's colours turn to
  const themeButton = el("button", { type: "button", id: "theme", onclick: () => {
    chosen = true;
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  } });
  function setTheme(name) {
    root.dataset.theme = name;
    themeButton.textContent = name === "dark" ? "Light" : "Dark";
    redrawCharts();
  }
  setTheme(root.dataset.theme);
  darkNow.addEventListener("change", () => { if (!chosen) setTheme(darkNow.matches ? "dark" : "light"); });
  // On paper: light, and as narrow as the paper before anything is drawn for it.
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.classList.add("print");
    setTheme("light");
    drawAllCharts();
  });
  window.addEventListener("afterprint", () => { root.classList.remove("print"); setTheme(before); });

  page.append(el("header", { class: "top" }, el("h1", {}, "evotune report"), themeButton));
  const shown = el("div", { id: "run" });
  function show(at) {
    forgetCharts(shown);
    shown.replaceChildren(...runSections(report.runs[at]));
    for (const [place, tab] of [...document.querySelectorAll(".tabs button")].entries()) {
      tab.setAttribute("aria-selected", String(place === at));
    }
  }
  if (report.runs.length > 1) {
    page.append(...comparisonSections(report.runs, (at) => { show(at); shown.scrollIntoView(); }));
  }
  page.append(shown, el("footer", {}, "Written by evotune " + report.evotune + ". Everything is in this file."));
  show(0);
  root.dataset.ready = "true";
})();

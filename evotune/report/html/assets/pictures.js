// Pictures that come as data: SVG elements of a few kinds, with attributes of a few names.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["line", "rect", "circle", "text"]);
const PLACES = new Set(["x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "width", "height", "transform", "text-anchor"]);

function pictureFigure(found) {
  return el("figure", { class: "evotune-picture" }, el("h4", {}, found.title),
    found.drawings.map((drawing) => svgOf(drawing, found.alternative)),
    found.note ? el("figcaption", {}, found.note) : null);
}

function svgOf(drawing, alternative) {
  const root = document.createElementNS(SVG, "svg");
  root.setAttribute("class", drawing.size);
  root.setAttribute("role", "img");
  root.setAttribute("aria-label", alternative);
  root.setAttribute("viewBox", `0 0 ${drawing.width} ${drawing.height}`);
  for (const [tag, look, places, text] of drawing.shapes) {
    if (!SHAPES.has(tag)) continue;
    const node = document.createElementNS(SVG, tag);
    node.setAttribute("class", look);
    for (const [name, value] of Object.entries(places)) if (PLACES.has(name)) node.setAttribute(name, value);
    node.textContent = text;
    root.append(node);
  }
  return root;
}

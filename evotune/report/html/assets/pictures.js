// Pictures that come as data: SVG elements of a few kinds, with attributes of a few names.

const SHAPES = new Set(["line", "rect", "circle", "text"]);
const PLACES = new Set(["x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "width", "height", "transform", "text-anchor"]);

function pictureFigure(found) {
  return el("figure", { class: "evotune-picture" }, el("h4", {}, found.title),
    found.drawings.map((drawing) => svgOf(drawing, found.alternative)),
    found.note ? el("figcaption", {}, found.note) : null);
}

function svgOf(drawing, alternative) {
  const attributes = { class: drawing.size, role: "img", "aria-label": alternative, viewBox: `0 0 ${drawing.width} ${drawing.height}` };
  return shape("svg", attributes, ...drawing.shapes.filter(([tag]) => SHAPES.has(tag)).map(([tag, look, places, text]) => {
    const known = Object.entries(places).filter(([name]) => PLACES.has(name));
    return shape(tag, { class: look, ...Object.fromEntries(known) }, text);
  }));
}

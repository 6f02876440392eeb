// Axes of charts: which values they show, where ticks stand, what is written there, and how much room that takes.

const RULE_REACH = 20; // a rule that lies further than so many times the data's range is left out

// [[value, text]], about `most` of them.
function ticksOf(axis, [from, to], most) {
  if (axis.names) return axis.names.map((text, at) => [at, text]);
  return axis.log ? logTicks(from, to, most) : linearTicks(from, to, most, axis.whole);
}

function linearTicks(from, to, most, whole) {
  const least = (to - from) / Math.max(2, most);
  const power = 10 ** Math.floor(Math.log10(least));
  let step = [1, 2, 5, 10].find((digit) => digit * power >= least * (1 - 1e-9)) * power;
  if (whole) step = Math.max(1, step);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let at = Math.ceil(from / step - 1e-9) || 0; at * step <= to + step * 1e-9; at += 1) ticks.push([at * step, numberText(at * step, decimals)]);
  return ticks;
}

function logTicks(from, to, most) {
  if (to / from < 8) return linearTicks(from, to, most);
  const [low, high] = [Math.floor(Math.log10(from)), Math.floor(Math.log10(to))];
  for (const digits of [[1, 2, 5], [1, 3], [1]]) {
    for (let nth = 1; nth === 1 || digits.length === 1; nth += 1) {
      const ticks = [];
      for (let power = Math.ceil(low / nth) * nth; power <= high; power += nth) {
        for (const digit of digits) {
          const value = Number(`${digit}e${power}`);
          if (value >= from && value <= to) ticks.push([value, numberText(value, Math.max(0, -power))]);
        }
      }
      if (ticks.length <= Math.max(2, most)) return ticks;
    }
  }
}

// The values that an axis shows: those of its marks, and some room at both ends.
function rangeOf(figure, side) {
  const axis = figure[side];
  if (axis.names) return [-0.5, axis.names.length - 0.5];
  let [least, most] = [Infinity, -Infinity];
  const take = (value) => {
    if (!Number.isFinite(value) || (axis.log && value <= 0)) return;
    [least, most] = [Math.min(least, value), Math.max(most, value)];
  };
  for (const mark of figure.marks) for (const point of mark.points || []) MARKS[mark.draw][side](point).forEach(take);
  for (const { [side]: value } of figure.marks.filter((mark) => mark.draw === "rule" && side in mark)) {
    if (Math.max(most, value) - Math.min(least, value) <= RULE_REACH * (most - least)) take(value);
  }
  if (axis.zero) take(0);
  if (least > most) [least, most] = axis.log ? [1, 10] : [0, 1];
  if (axis.log) {
    const room = Math.max(1.02, (most / least) ** 0.04);
    return [least / room, most * room];
  }
  const room = most > least ? 0.04 * (most - least) : Math.abs(most) / 20 || 1;
  return [axis.zero && least === 0 ? 0 : least - room, most + room];
}

// A function from values to pixels; `back` is its inverse.
function scaleOf([from, to], length, log, upwards) {
  const [into, out] = log ? [Math.log10, (value) => 10 ** value] : [(value) => value, (value) => value];
  const [start, span] = [into(from), into(to) - into(from)];
  const turn = (share) => (upwards ? 1 - share : share);
  const place = (value) => turn((into(value) - start) / span) * length;
  place.back = (pixel) => out(start + turn(pixel / length) * span);
  return place;
}

function textWidth(text) {
  if (!textWidth.context) {
    textWidth.context = document.createElement("canvas").getContext("2d");
    textWidth.context.font = "12px " + getComputedStyle(document.body).fontFamily;
  }
  return textWidth.context.measureText(text).width;
}

// The text, cut to the part that has room.
function fitted(text, width, measure = textWidth) {
  if (measure(text) <= width) return text;
  let most = text.length - 1;
  while (most > 1 && measure(text.slice(0, most) + "…") > width) most -= 1;
  return text.slice(0, most) + "…";
}

// Every tick, or each nth if the texts would touch. ticks: [pixel, text].
function spaced(ticks, measure = textWidth) {
  for (let nth = 1; ; nth += 1) {
    const kept = ticks.filter((_, at) => at % nth === 0);
    const free = kept.slice(1).every(([place, text], at) => place - kept[at][0] >= (measure(text) + measure(kept[at][1])) / 2 + 6);
    if (free) return kept;
  }
}

function numberText(value, decimals) {
  if (value && (Math.abs(value) >= 1e7 || decimals > 6)) return Number(value.toPrecision(4)).toExponential().replace(/^-/, "−").replace("e+", "e");
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace(/^-/, "−");
}

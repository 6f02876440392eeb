// The leaderboard's filter: words and comparisons, all of which must hold.
//   wrong_result          a text that occurs in the row
//   BLOCK_M=64  SPEEDUP>1.2  time<=300   a column against a number or a text

const COMPARISON = /^([^\s<>=!]+)(<=|>=|!=|=|<|>)(.+)$/;

function compileFilter(text, columns) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((term) => compileTerm(term, columns));
  return (row) => tests.every((test) => test(row));
}

function compileTerm(term, columns) {
  const found = COMPARISON.exec(term);
  const column = found && columns.find((known) => known.name.toLowerCase() === found[1].toLowerCase());
  if (!column) {
    const wanted = term.toLowerCase();
    return (row) => columns.some((known) => known.text(row).toLowerCase().includes(wanted));
  }
  const [, , sign, right] = found;
  const number = Number(right);
  return (row) => {
    const value = column.value(row);
    if (value === null || value === undefined) return false;
    const numeric = !Number.isNaN(number) && typeof value === "number";
    const left = numeric ? value : String(value).toLowerCase();
    const against = numeric ? number : right.toLowerCase();
    switch (sign) {
      case "=": return left === against;
      case "!=": return left !== against;
      case "<": return numeric && left < against;
      case ">": return numeric && left > against;
      case "<=": return numeric && left <= against;
      default: return numeric && left >= against;
    }
  };
}

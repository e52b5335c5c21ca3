// What a person has drawn: lines, kept as points, so that they can be taken back, centred, and drawn at any size.

export class Strokes {
  constructor() {
    this.lines = [];
  }

  get empty() {
    return !this.lines.length;
  }

  begin(point) {
    this.lines.push([point]);
  }

  extend(point) {
    this.lines[this.lines.length - 1].push(point);
  }

  undo() {
    this.lines.pop();
  }

  clear() {
    this.lines = [];
  }

  /** Draw it into a square of `size`. Points lie between 0 and 1; `pen` is in the same measure. */
  draw(context, size, pen, place = { scale: 1, x: 0, y: 0 }) {
    context.lineCap = context.lineJoin = "round";
    context.lineWidth = pen * size;
    const at = ([x, y]) => [(x * place.scale + place.x) * size, (y * place.scale + place.y) * size];
    for (const line of this.lines) {
      context.beginPath();
      context.moveTo(...at(line[0]));
      for (let k = 1; k < line.length - 1; k++) { // round where the hand was: through the middles of what was caught
        const [x, y] = at(line[k]), [nextX, nextY] = at(line[k + 1]);
        context.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
      }
      context.lineTo(...at(line[line.length - 1]));
      context.stroke();
    }
  }

  /** Where to place it so that it lies in the middle, and its longer side, pen and all, is `share` of the square. */
  centred(share, pen) {
    const xs = this.lines.flat().map(([x]) => x), ys = this.lines.flat().map(([, y]) => y);
    const [left, right] = [Math.min(...xs), Math.max(...xs)], [top, bottom] = [Math.min(...ys), Math.max(...ys)];
    const longer = Math.max(right - left, bottom - top);
    const scale = longer > pen ? Math.max(share - pen, pen) / longer : 1; // a dot stays a dot
    return { scale, x: 0.5 - (scale * (left + right)) / 2, y: 0.5 - (scale * (top + bottom)) / 2 };
  }
}

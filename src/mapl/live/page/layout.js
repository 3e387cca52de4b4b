'use strict';
// Where the dots of a network are: those who listen to each other attract each other, and all push each other away.

class Layout {
  constructor(count) {
    this.count = count;
    this.x = new Float64Array(count);
    this.y = new Float64Array(count);
    this.pushX = new Float64Array(count);
    this.pushY = new Float64Array(count);
    this.edges = [];
    this.heat = 1;
    this.gap = 1 / Math.sqrt(Math.max(count, 2));
    for (let i = 0; i < count; i++) {  // a spiral: even, and the same every time
      const radius = this.gap * Math.sqrt(i + 0.5), angle = i * 2.399963;
      this.x[i] = radius * Math.cos(angle);
      this.y[i] = radius * Math.sin(angle);
    }
  }

  // Edges are [a, b, share]: how much of their attention for others a and b give to each other, at most 1.
  pull(edges) {
    this.edges = edges;
    this.heat = Math.max(this.heat, 0.6);
  }

  get still() { return this.heat < 0.01; }

  step() {
    const {count, x, y, pushX, pushY, gap} = this;
    pushX.fill(0);
    pushY.fill(0);
    for (let i = 0; i < count; i++) {
      for (let j = i + 1; j < count; j++) {
        const dx = x[i] - x[j], dy = y[i] - y[j];
        const force = gap * gap / (dx * dx + dy * dy + 1e-6);
        pushX[i] += force * dx; pushY[i] += force * dy;
        pushX[j] -= force * dx; pushY[j] -= force * dy;
      }
      pushX[i] -= 1.5 * x[i];  // nobody drifts away, even without letters
      pushY[i] -= 1.5 * y[i];
    }
    for (const [a, b, share] of this.edges) {
      const dx = 5 * share * (x[a] - x[b]), dy = 5 * share * (y[a] - y[b]);
      pushX[a] -= dx; pushY[a] -= dy;
      pushX[b] += dx; pushY[b] += dy;
    }
    const most = 0.6 * gap * this.heat;
    for (let i = 0; i < count; i++) {
      const length = Math.hypot(pushX[i], pushY[i]) + 1e-9;
      const step = Math.min(0.12 * length, most) / length;
      x[i] += step * pushX[i];
      y[i] += step * pushY[i];
    }
    this.heat *= 0.975;
  }

  // The middle of the picture, and half of what it has to show.
  frame() {
    let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < this.count; i++) {
      left = Math.min(left, this.x[i]); right = Math.max(right, this.x[i]);
      top = Math.min(top, this.y[i]); bottom = Math.max(bottom, this.y[i]);
    }
    return {x: (left + right) / 2, y: (top + bottom) / 2,
      width: Math.max((right - left) / 2, this.gap), height: Math.max((bottom - top) / 2, this.gap)};
  }
}

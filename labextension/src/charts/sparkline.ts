/** Small lines of values from 0 to 100, beside numbers. */

const SVG = 'http://www.w3.org/2000/svg';

/** Points of polylines of values from 0 to 100 in a box, one string for each part without a gap. */
export function sparkPoints(spark: readonly number[], width: number, height: number): string[] {
  const step = spark.length > 1 ? width / (spark.length - 1) : 0;
  const lines: string[] = [];
  let line: string[] = [];
  spark.forEach((value, k) => {
    if (value < 0) {
      if (line.length) {
        lines.push(line.join(' '));
      }
      line = [];
    } else {
      const y = height - 1 - (Math.min(100, value) / 100) * (height - 2);
      line.push(`${(k * step).toFixed(1)},${y.toFixed(1)}`);
    }
  });
  if (line.length) {
    lines.push(line.join(' '));
  }
  return lines;
}

/** An SVG element whose line can be changed; hidden without values. Readers of the page skip it. */
export class Sparkline {
  constructor(
    name: string,
    private readonly _width: number,
    private readonly _height: number
  ) {
    this.node = document.createElementNS(SVG, 'svg');
    this.node.setAttribute('class', name);
    this.node.setAttribute('width', String(_width));
    this.node.setAttribute('height', String(_height));
    // It shrinks where numbers need its space.
    this.node.setAttribute('viewBox', `0 0 ${_width} ${_height}`);
    this.node.setAttribute('preserveAspectRatio', 'none');
    this.node.setAttribute('aria-hidden', 'true');
    this.node.setAttribute('hidden', '');
  }

  readonly node: SVGSVGElement;

  update(values: readonly number[]): void {
    const key = values.join();
    if (key === this._key) {
      return;
    }
    this._key = key;
    const lines = sparkPoints(values, this._width, this._height).map(points => {
      const line = document.createElementNS(SVG, 'polyline');
      line.setAttribute('points', points);
      return line;
    });
    this.node.replaceChildren(...lines);
    this.node.toggleAttribute('hidden', values.length === 0);
  }

  private _key = '';
}

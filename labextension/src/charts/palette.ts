/** Colors and dashes of all charts of the page. The colors themselves are in `style/charts.css`, so themes change them. */

/** Colors of single GPUs and runs: `data-color` is the number modulo this one. */
export const COLORS = 8;

/** Dash patterns that distinguish a few lines in addition to their colors. */
export const DASHES: readonly string[] = ['', '6 2', '2 2', '8 2 2 2'];

export type Rgb = [number, number, number];

/** Any CSS color as numbers, by drawing it. */
function rgb(css: string, fallback: Rgb): Rgb {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d', { willReadFrequently: true });
  if (!context || !css) {
    return fallback;
  }
  context.fillStyle = css;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return [r, g, b];
}

/**
 * Return 101 colors from idle to busy: from the page's own layout color through blue to the far end of lightness.
 *
 * Lightness alone carries the value, so it can be read without telling hues apart; busy is what
 * differs most from the page, in light and in dark.
 */
export function ramp(node: Element): Rgb[] {
  const style = getComputedStyle(node);
  const color = (name: string, fallback: Rgb) => rgb(style.getPropertyValue(name).trim(), fallback);
  const page = color('--jp-layout-color1', [255, 255, 255]);
  const dark = page[0] + page[1] + page[2] < 384;
  const idle = color('--jp-layout-color2', [238, 238, 238]);
  const middle = color(dark ? '--jp-brand-color1' : '--jp-brand-color2', [66, 165, 245]);
  const busy: Rgb = dark ? [236, 245, 255] : [8, 36, 92];
  const mix = (a: Rgb, b: Rgb, f: number) => a.map((v, i) => Math.round(v + (b[i] - v) * f)) as Rgb;
  return Array.from({ length: 101 }, (_, i) => (i < 50 ? mix(idle, middle, i / 50) : mix(middle, busy, (i - 50) / 50)));
}

/** Call back when JupyterLab's theme changes; returns what ends that. */
export function onTheme(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name'] });
  return () => observer.disconnect();
}

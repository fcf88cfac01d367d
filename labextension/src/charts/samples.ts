/** Samples as they come from the kernel, for dashboards and for the panel: see `jupyter_amltrain/kernel/samples.py`. */

import type { ITicks } from './series';

export type Bytes = ArrayBuffer | ArrayBufferView;

/** Bytes of the head of a part: node and count (uint16), number of the first tick (uint32). */
const HEAD_BYTES = 8;

/** Byte for an unknown percentage. */
const UNKNOWN = 255;

/** Own, aligned memory: a buffer is a view into the whole websocket message. */
export function own(bytes: Bytes): ArrayBuffer {
  return bytes instanceof ArrayBuffer
    ? bytes.slice(0)
    : (bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer);
}

/**
 * The parts of a message; throws a RangeError where it is too short.
 *
 * @param columns number of values in a sample of a node; in a message of one part, percentages may follow
 * @param halves values have the upper halves of float32
 */
export function decodeTicks(bytes: Bytes, parts: number, columns: (node: number) => number, halves = false): ITicks[] {
  const memory = own(bytes);
  const view = new DataView(memory);
  const heads = Array.from({ length: parts }, (_, p) => ({
    node: view.getUint16(HEAD_BYTES * p, true),
    count: view.getUint16(HEAD_BYTES * p + 2, true),
    first: view.getUint32(HEAD_BYTES * p + 4, true)
  }));
  const ticks = heads.reduce((sum, { count }) => sum + count, 0);
  const size = heads.reduce((sum, { node, count }) => sum + count * columns(node), 0);
  const [times, values] = [HEAD_BYTES * parts, HEAD_BYTES * parts + 8 * ticks];
  const t = new Float64Array(memory, times, ticks);
  const y = halves ? widened(new Uint16Array(memory, values, size)) : new Float32Array(memory, values, size);
  const all = withPercents(y, new Uint8Array(memory, values + (halves ? 2 : 4) * size));
  let [tick, value] = [0, 0];
  return heads.map(({ node, count, first }, p) => {
    const end = p === parts - 1 ? all.length : value + count * columns(node);
    const part = { node, first, count, t: t.subarray(tick, tick + count), y: all.subarray(value, end) };
    tick += count;
    value = end;
    return part;
  });
}

function widened(halves: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(halves, half => half << 16).buffer);
}

function withPercents(values: Float32Array, percents: Uint8Array): Float32Array {
  if (!percents.length) {
    return values;
  }
  const all = new Float32Array(values.length + percents.length);
  all.set(values);
  for (let i = 0; i < percents.length; i++) {
    all[values.length + i] = percents[i] === UNKNOWN ? NaN : percents[i];
  }
  return all;
}

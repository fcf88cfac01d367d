/** Ticks of GPUs out of an event's buffers. No DOM. */

import type { IGpus } from '../protocol';
import type { IGpuFrame } from './tokens';

/** Aligned, as typed arrays need it. */
function copy(view: DataView | undefined): ArrayBuffer {
  return view
    ? (view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) as ArrayBuffer)
    : new ArrayBuffer(0);
}

/** `null` when the buffers are not what the head says. */
export function gpuFrame(head: IGpus, buffers: readonly DataView[]): IGpuFrame | null {
  const parts = [8, 1, 1, 4].map((size, k) => {
    const part = copy(buffers[k]);
    return part.byteLength % size === 0 ? part : new ArrayBuffer(0);
  });
  const frame: IGpuFrame = {
    head,
    t: new Float64Array(parts[0]),
    util: new Uint8Array(parts[1]),
    memory: new Uint8Array(parts[2]),
    host: new Float32Array(parts[3])
  };
  const right =
    frame.t.length === head.n &&
    frame.memory.length === frame.util.length &&
    (head.n === 0 || frame.util.length % head.n === 0);
  return right ? frame : null;
}

/** Mean utilization of the last tick in percent; `null` when nothing is measured. */
export function meanUtil(frame: IGpuFrame): number | null {
  const n = frame.head.n;
  if (n === 0) {
    return null;
  }
  const last = frame.util.subarray(frame.util.length - frame.util.length / n).filter(value => value <= 100);
  return last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
}

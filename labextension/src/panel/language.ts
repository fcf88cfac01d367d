/** Which language a kernel speaks. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';

export class Languages {
  /** @param known Called when a language is known that was not before. */
  constructor(private readonly _known: () => void) {}

  /** In lower case; empty while it is not known. A kernel that does not tell is taken for Python. */
  of(kernel: Kernel.IKernelConnection, context: ISessionContext): string {
    const spec = context.specsManager.specs?.kernelspecs[kernel.name];
    if (spec) {
      return spec.language.toLowerCase();
    }
    const found = this._asked.get(kernel);
    if (found === undefined) {
      this._asked.set(kernel, '');
      const know = (language: string) => {
        this._asked.set(kernel, language.toLowerCase());
        this._known();
      };
      kernel.spec.then(
        answer => know(answer?.language ?? 'python'),
        () => know('python')
      );
    }
    return found ?? '';
  }

  private readonly _asked = new WeakMap<Kernel.IKernelConnection, string>();
}

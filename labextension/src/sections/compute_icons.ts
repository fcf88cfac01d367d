/** Icons of kinds of targets, in JupyterLab's colours. */

import { LabIcon } from '@jupyterlab/ui-components';

const draw = (name: string, path: string): LabIcon =>
  new LabIcon({
    name: `jupyter-amltrain:target-${name}`,
    svgstr:
      '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">' +
      `<path class="jp-icon3 jp-icon-selectable" fill="#616161" d="${path}"/></svg>`
  });

/** This machine. */
const local = draw(
  'local',
  'M5 5h14a1 1 0 0 1 1 1v9H4V6a1 1 0 0 1 1-1zm1.500 2v6.500h11V7zM2 16.500h20V18a1.500 1.500 0 0 1-1.500 1.500h-17A1.500 1.500 0 0 1 2 18z'
);
/** A machine that somebody owns. */
const machine = draw(
  'machine',
  'M4 4h16a1 1 0 0 1 1 1v5a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V5a1 1 0 0 1 1-1zm2 2.250v2.500h2.500v-2.500zm5 .5v1.500h7v-1.500z' +
    'M4 13h16a1 1 0 0 1 1 1v5a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1v-5a1 1 0 0 1 1-1zm2 2.250v2.500h2.500v-2.500zm5 .5v1.500h7v-1.500z'
);
/** Machines that a service rents out. */
export const cloudIcon = draw(
  'cloud',
  'M19.350 10.040A7.490 7.490 0 0 0 12 4C9.110 4 6.600 5.640 5.350 8.040A5.994 5.994 0 0 0 0 14c0 3.310 2.690 6 6 6h13c2.760 0 5-2.240 5-5' +
    ' 0-2.640-2.050-4.780-4.650-4.960z'
);

/** The icon of a kind; a kind nobody has drawn is a cloud when it has a price, else a machine. */
export function targetIcon(kind: string, priced: boolean): LabIcon {
  if (kind === 'local' || kind === 'process') {
    return local;
  }
  return priced || /azure|aml|cloud|cluster/i.test(kind) ? cloudIcon : machine;
}

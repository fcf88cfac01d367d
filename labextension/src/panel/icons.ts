/** Icons of the panel, in the colors of JupyterLab. */

import { LabIcon } from '@jupyterlab/ui-components';

function icon(name: string, inner: string): LabIcon {
  const svgstr = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">${inner}</svg>`;
  return new LabIcon({ name: `jupyter-amltrain:${name}`, svgstr });
}

/** Icon of runs: a falling curve between two axes. */
export const runsIcon = icon(
  'runs',
  '<g class="jp-icon3" fill="#616161"><path d="M3 3h2v16h16v2H3z"/>' +
    '<path d="M7.2 4.6l1.8-.8c1.6 3.6 2.7 7 5 8.6 1.7 1.2 4 1.5 7 1.6v2c-3.4-.1-6-.5-8.1-2-2.9-2-4-5.5-5.7-9.4z"/>' +
    '<circle cx="20" cy="15" r="2.2"/></g>'
);

export const cancelIcon = icon(
  'cancel',
  '<path class="jp-icon3" fill="#616161" d="M6 6h12v12H6z"/>'
);

export const againIcon = icon(
  'again',
  '<path class="jp-icon3" fill="#616161" d="M12 5V1L7 6l5 5V7a6 6 0 1 1-6 6H4a8 8 0 1 0 8-8z"/>'
);

export const deleteIcon = icon(
  'delete',
  '<path class="jp-icon3" fill="#616161" d="M6 19a2 2 0 0 0 2 2h8a2 2 0 0 0 2-2V7H6zM19 4h-3.5l-1-1h-5l-1 1H5v2h14z"/>'
);

export const compareIcon = icon(
  'compare',
  '<path class="jp-icon3" fill="#616161" d="M10 3H5a2 2 0 0 0-2 2v14a2 2 0 0 0 2 2h5v2h2V1h-2zm0 15H5l5-6zM19 3h-5v2h5v13l-5-6v9h5a2 2 0 0 0 2-2V5a2 2 0 0 0-2-2z"/>'
);

export const logIcon = icon(
  'log',
  '<path class="jp-icon3" fill="#616161" d="M4 5h16v2H4zm0 4h11v2H4zm0 4h16v2H4zm0 4h8v2H4z"/>'
);

/** Icon of a jump to a cell: an arrow into a box. */
export const cellIcon = icon(
  'cell',
  '<path class="jp-icon3" fill="#616161" d="M11 4h9a1 1 0 0 1 1 1v14a1 1 0 0 1-1 1h-9v-2h8V6h-8zm-1 4l5 4-5 4v-3H3v-2h7z"/>'
);

/** Icon of a place: a pin. */
export const whereIcon = icon(
  'where',
  '<path class="jp-icon3" fill="#616161" d="M12 2a7 7 0 0 0-7 7c0 5.200 7 13 7 13s7-7.800 7-13a7 7 0 0 0-7-7zm0 9.500a2.500 2.500 0 1 1 0-5 2.500 2.500 0 0 1 0 5z"/>'
);

/** Icon of a test: a pulse. */
export const testIcon = icon(
  'test',
  '<path class="jp-icon3" fill="#616161" d="M2 11h4.300l2.700-7 5 13 2.500-6H22v2h-4.200L14 22.500 9 9.400 7.700 13H2z"/>'
);

export const linesIcon = icon(
  'lines',
  '<path class="jp-icon3" fill="#616161" d="M3 4h4v3H3zm0 6.5h12v3H3zM3 17h7v3H3zM9 5h12v1H9zm8 6.500h4v1h-4zM12 18h9v1h-9z"/>'
);

export const linkIcon = icon(
  'external',
  '<path class="jp-icon3" fill="#616161" d="M19 19H5V5h7V3H5a2 2 0 0 0-2 2v14a2 2 0 0 0 2 2h14a2 2 0 0 0 2-2v-7h-2zM14 3v2h3.590l-9.83 9.83 1.41 1.410L19 6.410V10h2V3z"/>'
);

export const plugIcon = icon(
  'plug',
  '<path class="jp-icon3" fill="#616161" d="M16 7V3h-2v4h-4V3H8v4a2 2 0 0 0-2 2v5.5L9.5 18v3h5v-3l3.5-3.5V9a2 2 0 0 0-2-2z"/>'
);

export const gpuIcon = icon(
  'gpu',
  '<path class="jp-icon3" fill="#616161" d="M4 6h15a2 2 0 0 1 2 2v7a2 2 0 0 1-2 2h-2v2h-2v-2h-2v2h-2v-2H6v3H4V4H2V2h2zm4.5 2.5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zm7 0a3 3 0 1 0 0 6 3 3 0 0 0 0-6z"/>'
);

const draw = (name: string, path: string): LabIcon =>
  new LabIcon({
    name: `jupyter-amltrain:target-${name}`,
    svgstr:
      '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">' +
      `<path class="jp-icon3 jp-icon-selectable" fill="#616161" d="${path}"/></svg>`
  });

/** Icon of the local machine. */
const local = draw(
  'local',
  'M5 5h14a1 1 0 0 1 1 1v9H4V6a1 1 0 0 1 1-1zm1.500 2v6.500h11V7zM2 16.500h20V18a1.500 1.500 0 0 1-1.500 1.500h-17A1.500 1.500 0 0 1 2 18z'
);
/** Icon of a remote machine. */
const machine = draw(
  'machine',
  'M4 4h16a1 1 0 0 1 1 1v5a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V5a1 1 0 0 1 1-1zm2 2.250v2.500h2.500v-2.500zm5 .5v1.500h7v-1.500z' +
    'M4 13h16a1 1 0 0 1 1 1v5a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1v-5a1 1 0 0 1 1-1zm2 2.250v2.500h2.500v-2.500zm5 .5v1.500h7v-1.500z'
);
/** Icon of a cloud service. */
export const cloudIcon = draw(
  'cloud',
  'M19.350 10.040A7.490 7.490 0 0 0 12 4C9.110 4 6.600 5.640 5.350 8.040A5.994 5.994 0 0 0 0 14c0 3.310 2.690 6 6 6h13c2.760 0 5-2.240 5-5' +
    ' 0-2.640-2.050-4.780-4.650-4.960z'
);

/** Icon of a target kind; an unknown kind has the cloud icon if it has a price, else the machine icon. */
export function targetIcon(kind: string, priced: boolean): LabIcon {
  if (kind === 'local') {
    return local;
  }
  return priced || /aml|cloud|cluster/i.test(kind) ? cloudIcon : machine;
}

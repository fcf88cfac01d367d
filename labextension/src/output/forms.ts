/** Forms of a value that a script has displayed, by MIME type. Pure. */

import type { IDisplayReply, IRunDisplay } from '../protocol';
import { complete } from '../untyped';

/** Maximum number of replies for one display. */
const MAX_PARTS = 64;

/** Forms of a display, as a record or a reply has them. */
export type IForms = Pick<IRunDisplay, 'version' | 'data' | 'sizes'>;

/** Read all forms of a display in parts. */
export async function readForms(request: (offset: number) => Promise<IDisplayReply>): Promise<IForms> {
  let text = '';
  let offset = 0;
  for (let part = 0; part < MAX_PARTS; part++) {
    const reply = await request(offset);
    text += reply.text;
    // Python counts a pair of surrogates as one character.
    offset += Array.from(reply.text).length;
    if (!reply.text || offset >= reply.chars) {
      break;
    }
  }
  return complete<IRunDisplay>('IRunDisplay', JSON.parse(text));
}

/** Makes our models known to the widget manager. Loaded only where the widget library is. */

import { IJupyterWidgetRegistry } from '@jupyter-widgets/base';
import { JupyterFrontEnd } from '@jupyterlab/application';
import { TranslationBundle } from '@jupyterlab/translation';
import { StreamFeedModel } from './feed';
import { setAvailable } from './feeds';
import { FeedSite } from './site';

const MODULE = 'jupyter-amltrain';
const VERSION = '0.1.0';

export async function registerWidgets(app: JupyterFrontEnd, trans: TranslationBundle): Promise<void> {
  const registry = await app.resolveOptionalService(IJupyterWidgetRegistry);
  if (!registry) {
    return;
  }
  StreamFeedModel.makeSite = feed => FeedSite.make(feed, trans);
  registry.registerWidget({ name: MODULE, version: VERSION, exports: { StreamFeedModel } });
  setAvailable();
}

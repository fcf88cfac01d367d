import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { imageUrl, normalise } from '../src/record';

test('only base64 image URLs are drawn', () => {
  for (const kind of ['png', 'jpeg', 'gif', 'webp', 'svg+xml']) {
    assert.ok(imageUrl(`data:image/${kind};base64,QUJD`));
  }
  const others = ['javascript:alert(1)', 'http://x/a.png', 'blob:http://x/1', 'data:text/html;base64,QUJD'];
  for (const url of [...others, 'data:image/png,x', 'data:image/png;base64,A"onerror=1', ' data:image/png;base64,QQ==']) {
    assert.equal(imageUrl(url), '');
  }
});

test('pictures of any record become pictures', () => {
  const raw = [{ path: 'pictures/a.png', width: 'x', thumbnail: 'http://x' }, 7, null];
  const { pictures, pictures_hidden } = normalise({ pictures: raw, pictures_hidden: '2' });
  assert.deepEqual(
    pictures.map(one => [one.path, one.name, one.width, one.thumbnail]),
    [
      ['pictures/a.png', 'pictures/a.png', 0, ''],
      ['', '?', 0, ''],
      ['', '?', 0, '']
    ]
  );
  assert.equal(pictures_hidden, 0);
  assert.deepEqual(normalise({}).pictures, []);
});

"""Jupyter server extension: a proxy for the MLflow UI on authenticated routes of the server.

Imports nothing heavy. MLflow runs in a process that a kernel starts; the server and its kernels
exchange addresses through a private folder, whose path the kernels get in an environment variable.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.ioloop import IOLoop

from jupyter_amltrain.tracking import page_proxy


class MlflowPageHandler(JupyterHandler):
    """Forwards requests of signed-in users to the MLflow process."""

    auth_resource = "amltrain"

    def initialize(self, folder: str) -> None:
        """Set the folder in which kernels register their MLflow UI."""
        self._folder = folder

    def check_xsrf_cookie(self) -> None:
        """Accept same-origin requests without an XSRF token, which the MLflow UI does not send."""
        if not hasattr(self, "_jupyter_current_user"):
            return  # called again after authentication
        if not self.token_authenticated and not page_proxy.is_same_origin(self.request):
            raise web.HTTPError(403, "Blocking cross-origin request to the MLflow UI.")

    @web.authenticated
    @authorized
    async def get(self, key: str, path: str | None) -> None:
        """Forward a request of any method."""
        prefix = url_path_join(self.base_url, page_proxy.ROUTE, key)
        if path is None:  # links of the UI are relative to the trailing slash
            self.redirect(prefix + "/")
            return
        record = page_proxy.read_record(self._folder, key)
        if record is None:
            page_proxy.not_running(self)
        else:
            await page_proxy.forward(self, record, path, prefix)

    head = post = put = patch = delete = get


def _load_jupyter_server_extension(serverapp: Any) -> None:
    """Add the route and announce it to the kernels of this server."""
    folder = tempfile.mkdtemp(prefix="amltrain-")  # 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    route = url_path_join(serverapp.web_app.settings["base_url"], page_proxy.ROUTE, "([0-9a-f]{16})(/.*)?")
    serverapp.web_app.add_handlers(".*$", [(route, MlflowPageHandler, {"folder": folder})])
    os.environ[page_proxy.FOLDER_VARIABLE] = folder

    def write() -> None:  # the port is known once the server listens
        path = os.path.join(folder, page_proxy.SERVER_FILE)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "base_url": serverapp.base_url, "url": serverapp.connection_url}, file)

    IOLoop.current().add_callback(write)

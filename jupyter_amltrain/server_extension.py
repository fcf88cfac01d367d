"""Jupyter server extension: shows MLflow's page on the server's own, authenticated routes.

It imports nothing heavy. MLflow runs in a process that a kernel starts; the server and its kernels
meet in a private folder, whose name the kernels find in their environment.
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
    """Passes a signed-in user's requests on to MLflow's process."""

    auth_resource = "amltrain"

    def initialize(self, folder: str) -> None:
        """Take the folder where the pages of our kernels are found."""
        self._folder = folder

    def check_xsrf_cookie(self) -> None:
        """Let pages of our own origin change something: MLflow's page sends no XSRF token."""
        if not hasattr(self, "_jupyter_current_user"):
            return  # called again when it is known who asks
        if not self.token_authenticated and not page_proxy.is_same_origin(self.request):
            raise web.HTTPError(403, "Blocking Cross Origin request to MLflow's page.")

    @web.authenticated
    @authorized
    async def get(self, key: str, path: str | None) -> None:
        """Answer any method."""
        prefix = url_path_join(self.base_url, page_proxy.ROUTE, key)
        if path is None:  # the page's links are relative to the slash
            self.redirect(prefix + "/")
            return
        record = page_proxy.read_record(self._folder, key)
        if record is None:
            page_proxy.not_running(self)
        else:
            await page_proxy.forward(self, record, path, prefix)

    head = post = put = patch = delete = get


def _load_jupyter_server_extension(serverapp: Any) -> None:
    """Add the route, and tell kernels of this server that it is there."""
    folder = tempfile.mkdtemp(prefix="amltrain-")  # 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    route = url_path_join(serverapp.web_app.settings["base_url"], page_proxy.ROUTE, "([0-9a-f]{16})(/.*)?")
    serverapp.web_app.add_handlers(".*$", [(route, MlflowPageHandler, {"folder": folder})])
    os.environ[page_proxy.FOLDER_VARIABLE] = folder

    def write() -> None:  # its port is known when it listens
        path = os.path.join(folder, page_proxy.SERVER_FILE)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "base_url": serverapp.base_url, "url": serverapp.connection_url}, file)

    IOLoop.current().add_callback(write)

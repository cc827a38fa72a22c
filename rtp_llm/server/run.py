# SPDX-License-Identifier: Apache-2.0
"""Start the server: run the early checks, spawn the engine, then load the rest.

This module imports little, so that the engine process starts before the HTTP libraries load.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rtp_llm.config.command_line import LoadedSettings
from rtp_llm.config.nodes import check_nodes
from rtp_llm.config.roles import check_role
from rtp_llm.config.settings import Settings
from rtp_llm.server.http.listener import bind, close
from rtp_llm.server.http.log import announce, configure_logging
from rtp_llm.server.http.start_error import StartError
from rtp_llm.server.keys.key_file import read_key_file
from rtp_llm.server.telemetry.setup import check_telemetry
from rtp_llm.server.types.engine_interface import EngineInterface
from rtp_llm.text.model_files import ModelFilesError, check_folder

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
_log = logging.getLogger("rtp_llm.server")


def serve(loaded: LoadedSettings, make_engine: Callable[[], EngineInterface] | None = None) -> int:
    """Serve until a signal or until the engine dies; return the exit code.

    0 after a clean stop, 1 if the engine could not start or died, 128 + n after a second signal.
    Raises StartError or SettingsError before anything was started. `make_engine`: makes another
    engine client, for tests.
    """
    began = time.monotonic()
    settings = loaded.settings
    _check(settings)
    if settings.node_rank > 0:
        return _hold_ranks(settings)
    listener = bind(settings)
    queue = configure_logging(settings.log_level, settings.log_format)
    try:
        everything = settings.log_level == "debug"
        text = f"settings:\n{loaded.describe(everything)}"
        announce(settings.log_format, text, settings=loaded.shown(everything))
        for warning in loaded.warnings:
            _log.warning("%s", warning)
        engine = make_engine() if make_engine else _engine_client(settings)
        engine.spawn(settings)
        # Load the HTTP and tokenizer libraries while the engine process is loading.
        from rtp_llm.server.lifecycle import run_lifecycle

        return run_lifecycle(settings, engine, listener, began)
    finally:
        close(listener)
        queue.stop()


def _check(settings: Settings) -> None:
    """Raise StartError or SettingsError for problems that can be detected early."""
    check_role(settings)
    check_nodes(settings)
    if settings.api_key_file is not None:
        read_key_file(settings.api_key_file)
    check_telemetry(settings)
    _check_root_path(settings.root_path)
    if settings.tool_call_parser or settings.reasoning_parser:
        from rtp_llm.server.turn.answer_syntax import check_syntax

        check_syntax(settings)
    try:
        check_folder(settings.model, weights=settings.load_format != "dummy")
    except ModelFilesError as error:
        raise StartError(str(error)) from error


def _check_root_path(path: str) -> None:
    if path and (not path.startswith("/") or path.endswith("/")):
        raise StartError(f"--root-path {path}: it begins with a slash, and does not end with one")


def _hold_ranks(settings: Settings) -> int:
    """Run this machine's ranks of a model that node 0 serves."""
    from rtp_llm.engine.ranks.member import NodeError, hold_ranks

    queue = configure_logging(settings.log_level, settings.log_format)
    try:
        return hold_ranks(settings)
    except NodeError as error:
        raise StartError(str(error)) from error
    finally:
        queue.stop()


def _engine_client(settings: Settings) -> EngineInterface:
    module = "rtp_llm.engine.process.main" if settings.role == "both" else "rtp_llm.disagg.process"
    return engine_client(settings, module)


def engine_client(settings: Settings, module: str) -> EngineInterface:
    """An engine client with one process of `module` per rank, and with restarts."""
    from rtp_llm.engine.client.engine_client import EngineClient
    from rtp_llm.engine.client.restarts import Restarts

    return EngineClient(
        module,
        settings.data_parallel_size,
        Restarts(settings.restart_engine),
        devices=settings.ranks_per_engine,
        spare=True,
    )

"""libpstrain by ctypes: the functions and structs of pstrain.h, and errors as exceptions."""
from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import typing
from ctypes import (POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint8,
                    c_uint32, c_uint64, c_void_p)

from . import errors

API_MAJOR, API_MINOR = 0, 5
SONAME = f"libpstrain.so.{API_MAJOR}"
PACKAGE = pathlib.Path(__file__).resolve().parent

OK, ARG, CONFIG, TIMEOUT, PEER, SHAPE = 0, 1, 2, 7, 9, 10
EXCEPTIONS: "dict[int, type[errors.Error]]" = {
    ARG: errors.InputError, CONFIG: errors.InputError, SHAPE: errors.InputError,
    TIMEOUT: errors.TimeoutError, PEER: errors.PeerError,
}
LOG_FN = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
INTERRUPTED_FN = ctypes.CFUNCTYPE(c_int, c_void_p)


class Options(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("init_method", c_char_p), ("rank_plus_1", c_int),
                ("world_size", c_int), ("servers_plus_1", c_int), ("settings", POINTER(c_char_p)),
                ("n_settings", c_int), ("interrupted", c_void_p), ("interrupted_ctx", c_void_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("shape", POINTER(c_int64)), ("n_dims", c_int),
                ("kind", c_int), ("group", c_int)]


class Group(ctypes.Structure):
    _fields_ = [("lr", c_double), ("momentum", c_double), ("dampening", c_double),
                ("beta1", c_double), ("beta2", c_double), ("eps", c_double),
                ("weight_decay", c_double), ("nesterov", c_int), ("optimizer", c_int), ("name", c_char_p),
                ("lr_decay", c_double), ("initial_accumulator", c_double), ("centered", c_int),
                ("reserved", c_int)]


class State(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("step", c_uint64), ("arrays", c_void_p * 4),
                ("weights", c_void_p), ("feedback", c_void_p), ("rule_bytes", c_size_t),
                ("rule", c_uint8 * 64), ("missed", POINTER(c_uint64))]


class RowsTable(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dim", c_uint32), ("optimizer", c_char_p), ("lr", c_double), ("eps", c_double),
                ("beta1", c_double), ("beta2", c_double), ("lr_decay", c_double), ("initial_accumulator", c_double),
                ("init", c_char_p), ("scale", c_double), ("seed", c_uint64), ("max_bytes", c_uint64), ("evicts", c_int),
                ("admit", c_uint32), ("expire", c_uint32), ("codec", c_char_p)]


class RowsLookup(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("table", c_int), ("mode", c_int), ("ids", c_void_p), ("n_ids", c_uint64),
                ("n_rows", c_uint64), ("offsets", c_void_p), ("n_bags", c_uint64), ("weights", c_void_p), ("has_padding", c_int),
                ("padding", c_int64), ("out", c_void_p)]


class RowsPage(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("next", c_uint64), ("n", c_uint64), ("ids", c_void_p), ("values", c_void_p),
                ("steps", c_uint64), ("n_candidates", c_uint64), ("ages", c_void_p), ("clock", c_uint64)]


class RowsReaderOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("address", c_char_p), ("job", c_char_p), ("keys", c_char_p), ("timeout_ms", c_uint64),
                ("interrupted", c_void_p), ("interrupted_ctx", c_void_p)]


class RowsRead(ctypes.Structure):
    _fields_ = [("table", c_int), ("ids", c_void_p), ("n", c_uint64), ("out", c_void_p)]


class RowsPoint(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("point", c_uint64), ("writes", c_int), ("folder", c_char_p), ("name", c_char_p),
                ("manifest", c_char_p), ("fault", c_char_p)]


class Table(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("tensors", POINTER(Tensor)), ("n_tensors", c_int),
                ("tensor_size", c_size_t), ("groups", POINTER(Group)), ("n_groups", c_int),
                ("group_size", c_size_t), ("settings", POINTER(c_char_p)), ("n_settings", c_int),
                ("total_steps", c_uint64), ("resume", POINTER(State)), ("mean", c_int),
                ("rows", POINTER(RowsTable)), ("n_rows", c_int), ("rows_size", c_size_t)]


class Reducer(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("bytes", c_uint64), ("settings", POINTER(c_char_p)),
                ("n_settings", c_int)]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("steps", c_uint64), ("bytes_sent", c_uint64),
                ("bytes_received", c_uint64), ("raw_bytes", c_uint64), ("shm_sent", c_uint64),
                ("shm_received", c_uint64), ("wait_seconds", c_double)]


class DeviceOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("ordinal", c_int), ("dtypes", POINTER(c_int)), ("driver", c_char_p)]


class Part(ctypes.Structure):
    _fields_ = [("send", c_void_p), ("send_bytes", c_uint64), ("recv", c_void_p), ("recv_bytes", c_uint64)]


class TransferOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("call", c_int), ("root", c_int), ("peer", c_int), ("tag", c_uint64),
                ("parts", POINTER(Part)), ("gathers", c_int), ("dtype", c_int), ("op", c_int)]


_S = c_void_p  # a session
_PROTOTYPES: "dict[str, tuple[typing.Any, list[typing.Any]]]" = {
    "pstrain_error": (c_char_p, []),
    "pstrain_status_name": (c_char_p, [c_int]),
    "pstrain_version": (c_char_p, []),
    "pstrain_api_version": (c_int, []),
    "pstrain_set_log": (None, [LOG_FN, c_void_p, c_int]),
    "pstrain_create": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "pstrain_join": (c_int, [_S]),
    "pstrain_rank": (c_int, [_S]),
    "pstrain_world_size": (c_int, [_S]),
    "pstrain_servers": (c_int, [_S]),
    "pstrain_open": (c_int, [_S, POINTER(Table)]),
    "pstrain_params": (c_void_p, [_S]),
    "pstrain_grads": (c_void_p, [_S]),
    "pstrain_arena_count": (c_uint64, [_S]),
    "pstrain_tensor_offset": (c_uint64, [_S, c_int]),
    "pstrain_start": (c_int, [_S]),
    "pstrain_set_groups": (c_int, [_S, POINTER(Group), c_int, c_size_t]),
    "pstrain_begin": (c_int, [_S, POINTER(c_uint64)]),
    "pstrain_begin_of": (c_int, [_S, c_int, POINTER(c_uint64)]),
    "pstrain_wait": (c_int, [_S, c_int, c_int]),
    "pstrain_ready": (c_int, [_S, c_int, c_int, POINTER(c_int)]),
    "pstrain_push": (c_int, [_S, c_int, c_int]),
    "pstrain_push_copy": (c_int, [_S, c_int, c_void_p, c_float]),
    "pstrain_finish": (c_int, [_S]),
    "pstrain_drain": (c_int, [_S]),
    "pstrain_loss_scale": (c_int, [_S, POINTER(c_float), POINTER(c_uint64)]),
    "pstrain_sync": (c_int, [_S]),
    "pstrain_device_open": (c_int, [_S, POINTER(DeviceOptions)]),
    "pstrain_device_bytes": (c_uint64, [_S]),
    "pstrain_device_offset": (c_uint64, [_S, c_int]),
    "pstrain_device_arenas": (c_int, [_S, c_uint64, c_uint64]),
    "pstrain_device_wait": (c_int, [_S, c_int, c_int, c_void_p]),
    "pstrain_device_push": (c_int, [_S, c_int, c_void_p, c_float]),
    "pstrain_device_push_none": (c_int, [_S, c_int, c_int, c_void_p]),
    "pstrain_device_close": (c_int, [_S]),
    "pstrain_state_arrays": (c_int, [_S]),
    "pstrain_state_has_feedback": (c_int, [_S]),
    "pstrain_save": (c_int, [_S, POINTER(State)]),
    "pstrain_close_table": (c_int, [_S, POINTER(c_void_p)]),
    "pstrain_arenas_free": (None, [POINTER(c_void_p)]),
    "pstrain_push_none": (c_int, [_S, c_int, c_int]),
    "pstrain_checksum": (c_uint32, [c_void_p, c_uint64]),
    "pstrain_rows_pull": (c_int, [_S, POINTER(RowsLookup), c_int, c_int, POINTER(c_uint64)]),
    "pstrain_rows_prefetch": (c_int, [_S, POINTER(RowsLookup), c_int]),
    "pstrain_rows_forget_ahead": (c_int, [_S]),
    "pstrain_rows_gradient": (c_int, [_S, c_uint64, c_int, c_void_p, c_void_p]),
    "pstrain_rows_gradients": (c_int, [_S, c_uint64, c_int, POINTER(c_void_p), POINTER(c_void_p)]),
    "pstrain_rows_forget": (c_int, [_S, c_uint64]),
    "pstrain_rows_drop_gradients": (c_int, [_S, c_int]),
    "pstrain_rows_push": (c_int, [_S, c_float, POINTER(c_double)]),
    "pstrain_rows_steps": (c_uint64, [_S]),
    "pstrain_rows_width": (c_uint32, [_S, c_int]),
    "pstrain_rows_first": (c_int, [POINTER(RowsTable), c_size_t, c_int, c_void_p, c_uint64, c_void_p]),
    "pstrain_rows_load": (c_int, [_S, c_int, c_void_p, c_uint64, c_void_p, c_int, c_uint64]),
    "pstrain_rows_save": (c_int, [_S, c_int, POINTER(RowsPage)]),
    "pstrain_rows_restore": (c_int, [_S, c_int, POINTER(RowsPage), c_int]),
    "pstrain_rows_export": (c_int, [_S, c_char_p, POINTER(c_int), c_int, c_char_p]),
    "pstrain_rows_keep": (c_int, [_S, POINTER(RowsPoint)]),
    "pstrain_rows_return": (c_int, [_S, c_char_p, c_char_p]),
    "pstrain_rows_kept": (c_int, [_S, c_uint64, POINTER(c_int)]),
    "pstrain_rows_reader_open": (c_int, [POINTER(RowsReaderOptions), POINTER(c_void_p)]),
    "pstrain_rows_reader_close": (None, [POINTER(c_void_p)]),
    "pstrain_rows_reader_tables": (c_int, [c_void_p]),
    "pstrain_rows_reader_table": (c_int, [c_void_p, c_int, POINTER(RowsTable), c_size_t]),
    "pstrain_rows_reader_read": (c_int, [c_void_p, POINTER(RowsRead), c_int, c_size_t, POINTER(c_uint64)]),
    "pstrain_open_reducer": (c_int, [_S, POINTER(Reducer)]),
    "pstrain_reduce_begin": (c_int, [_S, c_void_p, c_uint64, POINTER(c_uint64)]),
    "pstrain_reduce_end": (c_int, [_S, c_uint64]),
    "pstrain_barrier": (c_int, [_S]),
    "pstrain_broadcast": (c_int, [_S, c_void_p, c_uint64, c_int]),
    "pstrain_all_gather": (c_int, [_S, c_void_p, c_uint64, c_void_p]),
    "pstrain_all_reduce": (c_int, [_S, c_void_p, c_uint64, c_int, c_int]),
    "pstrain_connect": (c_int, [_S]),
    "pstrain_is_one_host": (c_int, [_S]),
    "pstrain_comm_create": (c_int, [_S, c_uint64, POINTER(c_int), c_int, POINTER(c_void_p)]),
    "pstrain_comm_destroy": (None, [POINTER(c_void_p)]),
    "pstrain_transfer_begin": (c_int, [c_void_p, POINTER(TransferOptions), POINTER(c_void_p)]),
    "pstrain_transfer_wait": (c_int, [c_void_p, c_int, POINTER(c_int)]),
    "pstrain_transfer_from": (c_int, [c_void_p]),
    "pstrain_transfer_end": (c_int, [POINTER(c_void_p)]),
    "pstrain_should_stop": (c_int, [_S]),
    "pstrain_close": (c_int, [_S]),
    "pstrain_abort": (None, [_S, c_char_p]),
    "pstrain_destroy": (None, [POINTER(c_void_p)]),
    "pstrain_stats_get": (c_int, [_S, POINTER(Stats)]),
}

_loaded: "ctypes.CDLL | None" = None


def candidates() -> "list[str]":
    """Where the library may be, the first choice first."""
    named = os.environ.get("PSTRAIN_LIBRARY")
    if named:
        return [named]
    tree = PACKAGE.parent.parent / "build" / "release"  # of a checkout that was built
    places = [PACKAGE / "lib" / SONAME, tree / "lib" / SONAME, tree / "worker" / SONAME]
    return [str(p) for p in places if p.exists()] + [SONAME]


def load() -> ctypes.CDLL:
    """The library, loaded once. Error names what was tried."""
    global _loaded
    if _loaded is not None:
        return _loaded
    faults = []
    for path in candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            faults.append(str(error))
            continue
        _declare(library, path)
        _loaded = library
        return library
    raise errors.Error(f"{SONAME} cannot be loaded: {'; '.join(faults)}: {_mend(faults)}")


def _mend(faults: "typing.Sequence[str]" = ()) -> str:
    """faults: the loader's words."""
    if any("undefined symbol" in fault or "version `" in fault or not fault.startswith(path)
           for path, fault in zip(candidates(), faults)):
        return ("what it needs is missing or too old here (apt install libzmq5, 4.3 or later), or first in LD_LIBRARY_PATH; "
                "a wheel of pstrain brings its own")
    if os.environ.get("PSTRAIN_LIBRARY"):
        return "PSTRAIN_LIBRARY names it: correct it, or unset it"
    return "install it with `pip install ./python`, or name it with PSTRAIN_LIBRARY"


def _declare(library: ctypes.CDLL, path: str) -> None:
    if not hasattr(library, "pstrain_api_version"):
        raise errors.Error(f"{path} is not libpstrain: {_mend()}")
    version = library.pstrain_api_version()
    if version // 1000 != API_MAJOR or version % 1000 < API_MINOR:
        raise errors.Error(f"{path} has the interface {version // 1000}.{version % 1000}; this "
                           f"package needs {API_MAJOR}.{API_MINOR} or a later {API_MAJOR}: {_mend()}")
    for name, (result, arguments) in _PROTOTYPES.items():
        if not hasattr(library, name):
            raise errors.Error(f"{path} has no {name}: it is of another build than this package: {_mend()}")
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def texts(words: "typing.Sequence[str]") -> "ctypes.Array[c_char_p]":
    """char *[n]; the caller keeps it alive during the call."""
    return (c_char_p * len(words))(*[w.encode() for w in words])


__all__ = ["byref", "c_float", "c_int", "c_uint64", "c_void_p"]

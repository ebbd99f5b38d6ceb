"""Tensors out of files that torch wrote, without unpickling them.

A pickle is a program: whoever unpickles a stranger's file runs it. Here its instructions are read
by a small machine that can build numbers, text, lists, dictionaries and tensors, and nothing else.
Any other name in the file is an error: what wants to do something is refused instead of run.

Read are the three forms in use: the zip archives of `torch.save` and of TorchScript (of which only
parameters and buffers are taken, never the code), the older stream of `torch.save`, and a plain
pickle of a dictionary of tensors.
"""

import io
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recap.errors import WeightsError

_BFLOAT16 = "bfloat16"
_STORAGES: dict[str, str] = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_STREAM_MAGIC = 0x1950A86A20F9469CFC6C
_MOST_STEPS = 20_000_000
"""Instructions of one pickle; the largest checkpoints need a hundredth of that."""


class _NotTensorsError(Exception):
    """The file holds something else than tensors, or is damaged."""


@dataclass
class _Storage:
    """A run of numbers that tensors are views of; read when the first tensor is made of it."""

    kind: str
    count: int
    read: Callable[[], bytes] = bytes
    _values: Any = None

    def values(self) -> Any:
        """Read all its numbers."""
        if self._values is None:
            raw = self.read()
            size = 2 if self.kind == _BFLOAT16 else np.dtype(self.kind).itemsize
            if len(raw) != self.count * size:
                raise _NotTensorsError(f"a storage has {len(raw)} bytes instead of its own number")
            if self.kind == _BFLOAT16:  # the upper half of a float32
                high = np.frombuffer(raw, "<u2").astype("<u4") << 16
                self._values = high.view("<f4")
            else:
                self._values = np.frombuffer(raw, self.kind)
        return self._values


@dataclass(frozen=True)
class _Stored:
    """A tensor as the file describes it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> Any:
        """Read the tensor's numbers, in order."""
        sizes = (self.offset, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or not all(_is_count(size) for size in sizes):
            raise _NotTensorsError("a tensor has no proper shape")
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if 0 not in self.shape and self.offset + reach >= self.storage.count:
            raise _NotTensorsError("a tensor reaches beyond its storage")
        values = self.storage.values()[self.offset :]
        steps = [step * values.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(values, self.shape, steps, writeable=False)
        return np.ascontiguousarray(view).reshape(self.shape)


@dataclass
class _Module:
    """An object of a scripted model: its parameters, buffers and parts by name."""

    state: dict[str, Any] = field(default_factory=dict)


class _ModuleClass:
    """A class of a scripted model, whichever it is."""


def read_tensors(path: Path) -> dict[str, Any]:
    """Read all tensors of a file as arrays, by the names that a state dictionary has.

    Raises:
        WeightsError: the file cannot be read, is damaged, or holds anything but tensors.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(4)
            stream.seek(0)
            if start == b"PK\x03\x04":
                with zipfile.ZipFile(stream) as archive:
                    return _flatten(_read_archive(archive))
            return _flatten(_read_stream(stream))
    except (_NotTensorsError, zipfile.BadZipFile, OSError, RecursionError) as error:
        raise WeightsError(
            f"{path} cannot be used: {error or 'it is nested too deep'}. Needed is a file that "
            "holds tensors and nothing else, such as a state dictionary saved by torch, or "
            "model.safetensors."
        ) from error


def is_torch_file(path: Path) -> bool:
    """Tell a file of torch from others, by its first bytes."""
    with path.open("rb") as stream:
        start = stream.read(4)
    return start == b"PK\x03\x04" or start[:1] == b"\x80"


def _read_archive(archive: zipfile.ZipFile) -> Any:
    members = {info.filename: info for info in archive.infolist()}
    program = next((name for name in members if name.endswith("/data.pkl")), None)
    if program is None:
        raise _NotTensorsError("it is a zip archive, but not one of torch")
    root = program.removesuffix("data.pkl")

    def read(name: str) -> bytes:
        if name not in members:
            raise _NotTensorsError(f"{name} is missing in it")
        if members[name].compress_type != zipfile.ZIP_STORED:  # could be of any size
            raise _NotTensorsError(f"{name} in it is compressed, which torch never does")
        return archive.read(name)

    if f"{root}byteorder" in members and read(f"{root}byteorder") != b"little":
        raise _NotTensorsError("its numbers are big-endian")

    def find(kind: str, key: str, count: int) -> _Storage:
        return _Storage(kind, count, lambda: read(f"{root}data/{key}"))

    return _run(io.BytesIO(read(program)), find)


def _read_stream(stream: Any) -> Any:
    """Read a plain pickle, or the older form of `torch.save`: five pickles, then the numbers."""
    storages: dict[str, _Storage] = {}

    def find(kind: str, key: str, count: int) -> _Storage:
        return storages.setdefault(key, _Storage(kind, count))

    first = _run(stream, find)
    if first != _STREAM_MAGIC:
        return first
    for _ in ("protocol", "system"):
        _run(stream, find)
    content, keys = _run(stream, find), _run(stream, find)
    if not isinstance(keys, list):
        raise _NotTensorsError("its storages are not listed")
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        count = int.from_bytes(stream.read(8), "little")
        if storage is None or count != storage.count:
            raise _NotTensorsError("its storages are not those that its tensors name")
        size = 2 if storage.kind == _BFLOAT16 else np.dtype(storage.kind).itemsize
        storage.read = partial(_same, stream.read(count * size))
    return content


def _run(stream: Any, find: Callable[[str, str, int], _Storage]) -> Any:
    """Run one pickle's instructions, as far as they build tensors."""
    machine = _Machine(find)
    try:
        for step, (code, argument, _) in enumerate(pickletools.genops(stream)):
            if step > _MOST_STEPS:
                raise _NotTensorsError("it is too long")
            if code.name == "STOP":
                return machine.stack.pop()
            machine.step(code.name, argument)
    except _NotTensorsError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _NotTensorsError(f"it is damaged ({error})") from error
    raise _NotTensorsError("it is incomplete")


class _Machine:
    """A stack, a memo, and the few instructions that tensors need."""

    def __init__(self, find: Callable[[str, str, int], _Storage]) -> None:
        self._find = find
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self.stack: list[Any] = []

    def step(self, name: str, argument: Any) -> None:
        """Carry out one instruction."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name] if argument is None else argument)
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise _NotTensorsError(f"it holds the instruction {name}, which tensors do not need")

    def _mark(self, _: Any) -> None:
        self._marks.append(len(self.stack))

    def _above_mark(self) -> list[Any]:
        at = self._marks.pop()
        above = self.stack[at:]
        del self.stack[at:]
        return above

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._above_mark()))

    def _short_tuple(self, length: int) -> None:
        parts = self.stack[-length:]
        del self.stack[-length:]
        self.stack.append(tuple(parts))

    def _append(self, _: Any) -> None:
        value = self.stack.pop()
        self.stack[-1].append(value)

    def _appends(self, _: Any) -> None:
        values = self._above_mark()
        self.stack[-1].extend(values)

    def _set_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][key] = value

    def _set_items(self, _: Any) -> None:
        values = self._above_mark()
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(_meaning(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_meaning(str(module), str(name)))

    def _reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function not in _CALLABLE:
            raise _NotTensorsError("it calls what is not a function of tensors")
        self.stack.append(function(*arguments))

    def _new_object(self, _: Any) -> None:
        _, kind = self.stack.pop(), self.stack.pop()
        if kind is not _ModuleClass:
            raise _NotTensorsError("it makes objects other than tensors")
        self.stack.append(_Module())

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], _Module) and isinstance(state, dict):
            self.stack[-1].state = state
        elif not isinstance(self.stack[-1], dict):  # a dictionary's state is its version note
            raise _NotTensorsError("it gives a state to what has none")

    def _persistent(self, _: Any) -> None:
        word, kind, key, _, count, *_ = self.stack.pop()
        if word != "storage" or kind not in _STORAGES.values() or not _is_count(count):
            raise _NotTensorsError("it refers to something that is no storage")
        self.stack.append(self._find(kind, str(key), count))


def _meaning(module: str, name: str) -> Any:
    """Find the value or function that a name in the file stands for; there are few."""
    if module == "torch" and name in _STORAGES:
        return _STORAGES[name]
    if module.startswith("__torch__"):
        return _ModuleClass
    meaning = _NAMES.get(f"{module}.{name}")
    if meaning is None:
        raise _NotTensorsError(f"it holds {module}.{name}, which is no tensor, and is not run")
    return meaning


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, *_: Any) -> _Stored:
    if not isinstance(storage, _Storage):
        raise _NotTensorsError("a tensor has no storage")
    return _Stored(storage, offset, tuple(shape), tuple(strides))


def _same(value: Any, *_: Any) -> Any:
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


_NAMES: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda *_: {},
    "torch.Size": _same,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _same,
    "torch.nn.parameter.Parameter": _same,
    "torch.storage._load_from_bytes": lambda raw: _read_stream(io.BytesIO(raw)),
    "torch.jit._pickle.build_intlist": _same,
    "torch.jit._pickle.build_doublelist": _same,
    "torch.jit._pickle.build_boollist": _same,
    "torch.jit._pickle.build_tensorlist": _same,
    "torch.jit._pickle.restore_type_tag": _same,
}
_CALLABLE = frozenset(_NAMES.values())
_CONSTANTS: dict[str, Any] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")),
    **dict.fromkeys(("FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE")),
    **dict.fromkeys(("BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING")),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8")),
}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "MEMOIZE": _Machine._memoize,
    "TUPLE": _Machine._tuple,
    "TUPLE1": lambda machine, _: machine._short_tuple(1),
    "TUPLE2": lambda machine, _: machine._short_tuple(2),
    "TUPLE3": lambda machine, _: machine._short_tuple(3),
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "NEWOBJ": _Machine._new_object,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._persistent,
}


def _flatten(content: Any) -> dict[str, Any]:
    """Name every tensor by its way through the modules, or the dictionaries of a checkpoint."""
    if isinstance(content, dict):
        inner = next((content[key] for key in ("state_dict", "model") if key in content), content)
        content = inner if isinstance(inner, dict | _Module) else content
    found: dict[str, Any] = {}
    _collect(content, "", found, set())
    if not found:
        raise _NotTensorsError("it holds no tensors")
    prefix = "module."  # of models that were trained on several GPUs
    every = all(name.startswith(prefix) for name in found)
    return {name.removeprefix(prefix) if every else name: each for name, each in found.items()}


def _collect(content: Any, name: str, found: dict[str, Any], above: set[int]) -> None:
    if isinstance(content, _Stored):
        found[name] = content.array()
        return
    parts = content.state if isinstance(content, _Module) else content
    if not isinstance(parts, Mapping) or id(parts) in above:
        return
    for key, part in parts.items():
        _collect(part, f"{name}.{key}" if name else str(key), found, above | {id(parts)})

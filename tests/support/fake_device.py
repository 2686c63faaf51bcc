"""A fake "mps" for tests: CPU tensors that act as if some of them lived on an accelerator.

Under `with fake_mps():` a tensor that was sent or made there says device(type='mps', index=0). Its values stay on the
CPU, and what would fail on the real device fails here: two devices in one operation, `.numpy()`, draws from a CPU
generator, float64 and complex numbers. One table says where each storage is. Calls from Python are seen by patches of
torch's names; what PyTorch does then, the backward pass too, by a TorchDispatchMode.

Not seen: speed, rounding, operations that a device lacks, and what runs in another thread or process.
"""

import contextlib
import functools
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, MPS = torch.device("cpu"), torch.device("mps", 0)
NOT_ON_MPS = (torch.float64, torch.complex32, torch.complex64, torch.complex128)
COPIES = {"copy_", "copy", "_foreach_copy_", "set_"}  # may cross: the result is where the first argument is
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
FOLLOWS = ("tensor", "as_tensor", "asarray")  # and *_like: made where the first argument is, if it is a tensor
REAL = {name: getattr(torch.Tensor, name) for name in ("device", "to", "numpy", "__deepcopy__", "untyped_storage")}


@contextlib.contextmanager
def fake_mps():
    """This machine seems to have one accelerator, "mps"; yields a FakeDevice."""
    fake = FakeDevice()
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in fake.replacements():
            stack.enter_context(patch.object(owner, name, replacement))
        stack.enter_context(_Operations(fake))
        yield fake


class FakeDevice:
    """Knows which storages are on the device."""

    def __init__(self):
        self.table = {}  # address of a storage -> (weak reference, device); no address is used again while that lives
        self.sent, self.draws = 0, []  # tensors ever there; draws made there

    def place(self, x):
        """The device of a tensor; None if PyTorch made it inside an operation and it has met no other yet."""
        real = REAL["device"].__get__(x)
        if real != CPU or x.layout != torch.strided:
            return real
        return self.table.get(REAL["untyped_storage"](x)._cdata, (None, CPU))[1]

    def put(self, x, device):
        """Note that x is on this device, if the device can hold it."""
        if device == MPS and x.dtype in NOT_ON_MPS:
            dtype = str(x.dtype).removeprefix("torch.")
            raise TypeError(
                f"Cannot convert a MPS Tensor to {dtype} dtype as the MPS framework doesn't support {dtype}. "
                "Please use float32 instead."
            )
        if REAL["device"].__get__(x) == CPU and x.layout == torch.strided:
            storage = REAL["untyped_storage"](x)
            if len(self.table) > 2000 and len(self.table) % 500 == 0:
                self.table = {key: row for key, row in self.table.items() if not row[0].expired()}
            self.sent += device == MPS
            self.table[storage._cdata] = (StorageWeakRef(storage), device)
        return x

    # ------------------------------------------------------------------------------ what Python calls

    def to(self, x, *args, copy=False, **kwargs):
        """Tensor.to: a change of dtype happens where the tensor is, then it moves; gradients move back."""
        other = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        if other is not None:
            device = self.place(other)
        target = self.place(x) if device is None else named(device)
        if target is None or REAL["device"].__get__(x) != CPU:  # from or to "meta"
            return REAL["to"](x, *args, copy=copy, **kwargs)
        x = REAL["to"](x, dtype=dtype or x.dtype, copy=copy, memory_format=layout or torch.preserve_format)
        return x if target == self.place(x) else _Move.apply(x, self, target)

    def factory(self, make, name):
        """torch.zeros, torch.ones_like, ... with an argument `device` that knows the fake."""
        follows = name.endswith("_like") or name in FOLLOWS

        @functools.wraps(make)
        def made(*args, device=None, **kwargs):
            source = args[0] if follows and args and isinstance(args[0], torch.Tensor) else None
            device = next((m.device for m in _get_current_function_mode_stack() if isinstance(m, DeviceContext)),
                          CPU if source is None else self.place(source)) if device is None else device  # fmt: skip
            target = named(device)
            if target is None or (source is not None and source.is_meta):
                return make(*args, device=device, **kwargs)
            if name in ("as_tensor", "asarray"):
                return self.to(make(*args, device=CPU, **kwargs), target)
            if name.startswith("rand"):
                self.drawn(name, kwargs.get("generator"), target)
            return self.put(make(*args, device=CPU, **kwargs), target)

        return made

    def drawn(self, name, generator, device):
        """Random numbers on the device: a CPU generator cannot draw them, and other devices draw other numbers."""
        if device == MPS and generator is not None:
            raise RuntimeError("Expected a 'mps' device type for generator but found 'cpu'")
        if device == MPS and "dot_product" not in name:  # attention only draws when it drops out
            self.draws.append(name)

    def numpy(self, x, *args, **kwargs):
        """Tensor.numpy, which np.asarray calls too."""
        if self.place(x) == MPS:
            raise TypeError(
                "can't convert mps:0 device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return REAL["numpy"](x, *args, **kwargs)

    def replacements(self):
        """What is patched: (owner, name, replacement)."""
        tensor = torch.Tensor
        yield tensor, "device", property(lambda x: self.place(x) or CPU)
        for name in ("cpu", "mps"):
            yield tensor, f"is_{name}", property(lambda x, name=name: x.device.type == name)
        yield tensor, "numpy", lambda x, *args, **kwargs: self.numpy(x, *args, **kwargs)
        yield tensor, "to", lambda x, *args, **kwargs: self.to(x, *args, **kwargs)
        yield tensor, "cpu", lambda x, **_: self.to(x, CPU)
        yield tensor, "__deepcopy__", lambda x, memo: self.put(REAL["__deepcopy__"](x, memo), self.place(x))
        likes = [name for name in dir(torch) if name.endswith("_like")]
        for name in {function.__name__ for function in _device_constructors()} | set(likes):
            if hasattr(torch, name):
                yield torch, name, self.factory(getattr(torch, name), name)
        yield torch.cuda, "is_available", lambda: False
        yield torch.backends.mps, "is_available", lambda: True
        yield torch.mps, "synchronize", lambda: None
        yield torch.mps, "manual_seed", lambda seed: None
        # A build of torch for CUDA would ask the driver, which is not there, for its stream.
        yield torch.accelerator, "current_accelerator", lambda check_available=False: None
        yield torch.cuda, "is_current_stream_capturing", lambda: False  # the same, in older releases


def named(device):
    """The device with its number; None if it is neither the fake one nor the CPU."""
    return {"mps": MPS, "cpu": CPU}.get(torch.device(device).type)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(x, fake, target):
        return fake.put(x.clone(), target)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.fake, ctx.source = inputs[1], inputs[1].place(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return _Move.apply(gradient, ctx.fake, ctx.source), None, None


# ------------------------------------------------------------------------------ what PyTorch then does


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled here; the default imports the compiler, which takes seconds

    def __init__(self, fake):
        super().__init__()
        self.fake = fake

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        fake, kwargs = self.fake, kwargs or {}
        name = operation.overloadpacket.__name__
        if name in COPIES:
            if all(isinstance(x, torch.Tensor) for x in args[:2]) and fake.place(args[0]) is None:
                fake.put(args[0], fake.place(args[1]))
            return operation(*args, **kwargs)
        home = self.home(name, args, kwargs)
        if torch.Tag.nondeterministic_seeded in operation.tags:
            generator = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)), None)
            fake.drawn(name, generator, home)
        result = operation(*args, **kwargs)
        if home != CPU:
            for x in tree_leaves(result):
                if isinstance(x, torch.Tensor):
                    fake.put(x, home)
        return result

    def home(self, name, args, kwargs):
        """The device on which an operation runs and leaves its results; None if no argument tells."""
        places, numbers = set(), set()  # numbers: of single numbers, which may also come from the CPU
        for position, value in enumerate((*args, *kwargs.values())):
            listed = isinstance(value, list | tuple)
            for x in value if listed else (value,):
                if isinstance(x, torch.Tensor):
                    place = self.fake.place(x)
                    if name in INDEXING and listed and place == CPU:
                        continue  # indices may also be on the CPU
                    result = position == 0 and name.endswith("_")
                    (numbers if x.ndim == 0 and not listed and not result else places).add(place)
        if name in INDEXING and self.fake.place(args[0]) == CPU and MPS in places:
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        if MPS in places | numbers:
            if CPU in places:
                raise RuntimeError(f"Expected all tensors to be on the same device, but found mps:0 and cpu! ({name})")
            return MPS
        return CPU if CPU in places | numbers else None

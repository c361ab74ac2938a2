"""The Python package on small programs: values, exceptions, memory, threads."""

import ctypes
import threading

import numpy as np
import pytest

import penstock

LEAST_SQUARES = """
graph least_squares {
  %x = input : f32[8, 4]
  %w = parameter : f32[4, 2]
  %y = matmul(%x, %w) : f32[8, 2]
  %yy = square(%y) : f32[8, 2]
  %loss = reduce_mean(%yy) {axes=[0, 1]} : f32[]
  return %y, %loss
}
"""

DROPOUT = """
graph noisy {
  %x = input : f32[16, 16]
  %w = parameter : f32[16, 16]
  %y = matmul(%x, %w) : f32[16, 16]
  %kept = dropout(%y) {rate=0.5, stream=3} : f32[16, 16]
  %loss = reduce_mean(%kept) {axes=[0, 1]} : f32[]
  return %loss
}
"""


def start(text=LEAST_SQUARES, strategy="", **options):
    return penstock.Session(penstock.compile(penstock.Graph.parse(text), strategy=strategy),
                            **options)


def x_of(step=0):
    return np.random.default_rng(step).standard_normal((8, 4)).astype(np.float32)


def test_version_is_that_of_the_library():
    assert penstock.__version__.count(".") == 2


def test_values_are_those_of_numpy_under_any_strategy():
    x = x_of()
    w = np.arange(8, dtype=np.float32).reshape(4, 2)
    for strategy, devices in (("", 1), ("dp=2", 2), ("dp=2,pp=2", 4), ("dp=2,tp=2", 4)):
        plan = penstock.compile(penstock.Graph.parse(LEAST_SQUARES), strategy=strategy,
                                splits=[("w", 1)])
        assert plan.num_devices == devices
        assert plan.feeds == {"x": ("f32", (8, 4))}
        assert plan.states == {"w": ("f32", (4, 2))}
        with penstock.Session(plan) as session:
            session.set_state("w", w)
            results = session.run({"x": x})
            np.testing.assert_allclose(results["y"].numpy(), x @ w, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(float(results["loss"]), np.mean((x @ w) ** 2), rtol=1e-5)
            np.testing.assert_array_equal(session.fetch("w").numpy(), w)


def test_a_training_step_lowers_the_loss():
    text = LEAST_SQUARES.replace("return %y, ", "return ")
    step = penstock.Graph.parse(text).training_step(learning_rate=1e-2)
    assert "adamw" in str(step)
    with penstock.Session(penstock.compile(step, strategy="dp=2"), seed=1) as session:
        losses = [float(session.run({"x": x_of()})["loss"]) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_plans_are_stored_as_bytes():
    plan = penstock.compile(penstock.Graph.parse(LEAST_SQUARES), strategy="dp=2")
    again = penstock.Plan.from_bytes(plan.to_bytes())
    assert again.strategy == plan.strategy == "dp=2,tp=1,pp=1"
    x = x_of()
    with penstock.Session(plan, seed=3) as one, penstock.Session(again, seed=3) as two:
        np.testing.assert_array_equal(one.run({"x": x})["y"], two.run({"x": x})["y"])
    with pytest.raises(penstock.Error):
        penstock.Plan.from_bytes(plan.to_bytes()[:100])


def test_first_step_continues_random_operators():
    x = np.ones((16, 16), np.float32)
    with start(DROPOUT, seed=5) as session:
        losses = [float(session.run({"x": x})["loss"]) for _ in range(4)]
    assert len(set(losses)) == 4
    with start(DROPOUT, seed=5, first_step=2) as session:
        assert [float(session.run({"x": x})["loss"]) for _ in range(2)] == losses[2:]


def test_fetches_own_their_memory_and_are_not_copied():
    with start() as session:
        tensor = session.run({"x": x_of()})["y"]
    view = tensor.numpy()
    again = np.asarray(tensor)
    assert np.shares_memory(view, again)
    assert np.shares_memory(view, np.from_dlpack(tensor))
    kept = view.copy()
    del tensor, session, again
    np.testing.assert_array_equal(view, kept)
    assert not np.shares_memory(view, np.array(view, copy=True))


# PyTorch is a large download and is not in tests/requirements.txt: this runs where it is installed
# for other reasons, such as beside the benchmarks, and is skipped in CI. The tests with bf16 below
# check the protocol itself.
def test_torch_takes_a_view():
    torch = pytest.importorskip("torch", reason="PyTorch is not in tests/requirements.txt")
    with start(seed=1) as session:
        tensor = session.run({"x": x_of()})["y"]
        view = torch.from_dlpack(tensor)
        assert view.data_ptr() == tensor.numpy().ctypes.data
        np.testing.assert_array_equal(view.numpy(), tensor.numpy())
        # And gives one.
        x = torch.from_numpy(x_of())
        np.testing.assert_array_equal(session.run({"x": x})["y"], tensor.numpy())


def test_a_copy_is_made_only_where_it_may_be():
    tensor = penstock.Tensor.zeros((2, 3))
    assert np.shares_memory(tensor.__array__(copy=False), tensor.numpy())
    assert np.shares_memory(tensor.__array__(np.float32, copy=False), tensor.numpy())
    for options in ({"copy": True}, {"dtype": np.float32, "copy": True}, {"dtype": np.float64},
                    {"dtype": np.float64, "copy": True}):
        assert not np.shares_memory(tensor.__array__(**options), tensor.numpy())
    assert tensor.__array__(np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        tensor.__array__(np.float64, copy=False)


def test_the_strategy_is_chosen_for_a_number_of_devices():
    text = LEAST_SQUARES.replace("return %y, ", "return ")
    step = penstock.Graph.parse(text).training_step()
    assert penstock.compile(step, strategy="auto").num_devices == 1
    plan = penstock.compile(step, strategy="auto", devices=2)
    assert plan.num_devices == 2
    with penstock.Session(plan, seed=1) as session:
        assert np.isfinite(float(session.run({"x": x_of()})["loss"]))
    with pytest.raises(ValueError, match='devices = 2 goes with strategy="auto"'):
        penstock.compile(step, strategy="dp=2", devices=2)


def test_capsules_are_versioned_where_they_are_asked_for():
    with start() as session:
        tensor = session.run({"x": x_of()})["y"]
    assert tensor.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" not in repr(tensor.__dlpack__())


class DlpackOnly:
    """An array that knows no protocol but DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class DLTensor(ctypes.Structure):
    """Of dlpack.h, version 1."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


INT, BFLOAT = 0, 4  # DLDataTypeCode


def managed_tensor(capsule):
    """What a capsule of version 1 holds, as long as the capsule lives."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return DLManagedTensorVersioned.from_address(pointer_of(capsule, b"dltensor_versioned"))


class Bfloat16(DlpackOnly):
    """An array of 16-bit integers that says it is one of bf16, which NumPy does not have."""

    def __dlpack__(self, **options):
        capsule = self._array.__dlpack__(**{**options, "max_version": (1, 0)})
        tensor = managed_tensor(capsule).tensor
        assert (tensor.code, tensor.bits) == (INT, 16)
        tensor.code = BFLOAT
        return capsule


def test_bf16_goes_in_and_out_through_dlpack():
    # 1, -2.5 and others: bf16 is the upper half of f32.
    bits = (np.array([[1, -2.5, 0, 3.140625], [-0.5, 1e30, -1e-30, 7]], np.float32)
            .view(np.uint32) >> 16).astype(np.uint16)
    with start("graph g {\n  %x = input : bf16[2, 4]\n  %y = neg(%x) : bf16[2, 4]\n"
               "  return %y\n}") as session:
        negated = session.run({"x": Bfloat16(bits.view(np.int16))})["y"]
        twice = session.run({"x": negated})["y"]
    for tensor, expected in ((negated, bits ^ 0x8000), (twice, bits)):
        capsule = tensor.__dlpack__(max_version=(1, 0))
        managed = managed_tensor(capsule)
        assert managed.major == 1
        out = managed.tensor
        assert (out.code, out.bits, out.lanes) == (BFLOAT, 16, 1)
        assert (out.device_type, out.device_id) == tensor.__dlpack_device__() == (1, 0)
        assert (out.ndim, out.shape[0], out.shape[1]) == (2, 2, 4)
        assert not out.strides or (out.strides[0], out.strides[1]) == (4, 1)
        words = (ctypes.c_uint16 * 8).from_address(out.data + out.byte_offset)
        np.testing.assert_array_equal(np.array(words).reshape(2, 4), expected)
        # Views: another capsule has the same memory.
        again = tensor.__dlpack__(max_version=(1, 0))
        assert managed_tensor(again).tensor.data == out.data


def test_feeds_of_any_kind_give_the_same_results():
    x = x_of()
    with start(seed=1) as session:
        expected = session.run({"x": x})["y"].numpy()
        for feed in (np.asfortranarray(x), DlpackOnly(x), np.repeat(x, 2, axis=0)[::2]):
            np.testing.assert_array_equal(session.run({"x": feed})["y"], expected)
        # A result is a feed without detour.
        with start("graph g {\n  %x = input : f32[8, 2]\n  %y = neg(%x) : f32[8, 2]\n"
                   "  return %y\n}") as other:
            negated = other.run({"x": session.run({"x": x})["y"]})["y"]
        np.testing.assert_array_equal(negated, -expected)


def test_tensors_are_filled_and_fed():
    x = penstock.Tensor.zeros((8, 4))
    x.numpy()[:] = x_of()
    with start(seed=1) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"],
                                      session.run({"x": x_of()})["y"])
    assert penstock.Tensor.zeros((2, 0), "bool").numpy().shape == (2, 0)
    with pytest.raises(penstock.UnimplementedError, match="bf16"):
        penstock.Tensor.zeros((2,), "bf16").numpy()
    with pytest.raises(penstock.InvalidArgumentError, match="f33"):
        penstock.Tensor.zeros((2,), "f33")
    with pytest.raises(MemoryError):
        penstock.Tensor.zeros((1 << 30, 1 << 17))
    with pytest.raises(ValueError):
        penstock.Tensor.zeros((2, -1))


def test_errors_are_exceptions_that_say_where():
    with pytest.raises(penstock.InvalidArgumentError, match=r"bad\.pst:2:\d+: .*"):
        penstock.Graph.parse("graph g {\n  %x = inptu : f32[2]\n}", "bad.pst")
    with pytest.raises(ValueError, match="dp = 3 does not divide batch = 8"):
        penstock.compile(penstock.Graph.parse(LEAST_SQUARES), strategy="dp=3")
    with start() as session:
        with pytest.raises(penstock.InvalidArgumentError, match="x"):
            session.run({"x": x_of().astype(np.float64)})
        with pytest.raises(penstock.InvalidArgumentError, match="feed x: expected an array"):
            session.run({"x": object()})
        with pytest.raises(penstock.Error):
            session.run({})
        with pytest.raises(penstock.Error) as raised:
            session.fetch("nothing")
        assert raised.value.code in ("NOT_FOUND", "INVALID_ARGUMENT")
        assert session.run({"x": x_of()})["y"].shape == (8, 2)
    with pytest.raises(penstock.Error):
        session.run({"x": x_of()})


def test_other_threads_run_while_a_step_does():
    """The step of one thread completes while another thread computes in Python; both advance."""
    counted = []
    running = threading.Event()
    done = threading.Event()

    def count():
        running.wait()
        while not done.is_set():
            counted.append(len(counted))

    big = ("graph g {\n  %x = input : f32[1024, 1024]\n"
           "  %a = matmul(%x, %x) : f32[1024, 1024]\n"
           "  %b = matmul(%a, %x) : f32[1024, 1024]\n"
           "  %c = matmul(%b, %x) : f32[1024, 1024]\n  return %c\n}")
    x = np.full((1024, 1024), 1e-3, np.float32)
    with start(big) as session:
        thread = threading.Thread(target=count)
        thread.start()
        running.set()
        before = len(counted)
        for _ in range(3):
            session.run({"x": x})
        during = len(counted) - before
        done.set()
        thread.join()
    # With the lock held through each step, the counter would only run between them.
    assert during > 1000


def test_steps_overlap_and_threads_share_a_session():
    with start(seed=1) as session:
        first, second = session.submit({"x": x_of(0)}), session.submit({"x": x_of(1)})
        two = session.wait(second)["y"].numpy()
        one = session.wait(first)["y"].numpy()
        results = [None] * 8

        def run(i):
            results[i] = session.run({"x": x_of(i % 2)})["y"].numpy()

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(results[0], one)
        np.testing.assert_array_equal(results[1], two)

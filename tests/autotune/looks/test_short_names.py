"""Short names of kernels: the part that distinguishes them stays, the rest is dropped."""

from __future__ import annotations

import pytest

from autotune.looks.kernel_names import printable, short_name

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)"
)
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_MI16x16x1_SN_LDSB1_AFC1_WSGRA0_WSGRB0_WG16_4_4"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("volta_sgemm_64x64_nt", "volta_sgemm_64x64_nt"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "ncclKernel_AllReduce_RING_LL_Sum_float"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*, float*)", "deep_ep::intranode::dispatch<8, 768>"),
        ("std::enable_if<(((8)>(0))), void>::type vllm::norm<8>(int)", "vllm::norm<8>"),
        (ADD, "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (COPY, "elementwise_kernel<direct_copy_kernel_cuda>"),
        ("operator", "operator"),
        ("enumerate(DataLoader)#_SingleProcess.__next__", "enumerate(DataLoader)#_SingleProcess.__next__"),
        ("void f(int, g<4>) const [clone .kd]", "f"),
        ("void cut_off<4>(int, long", "cut_off<4>"),
        ("", ""),
    ],
)
def test_a_kernel_is_called_by_what_it_does(name: str, said: str) -> None:
    assert short_name(name) == said


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    said = short_name(TENSILE, 40)
    assert len(said) == 40
    assert said.startswith("Cijk_Alik_Bljk")
    assert said.endswith("WG16_4_4")


@pytest.mark.parametrize("name", ["a<" * 3000, ">" * 3000, "(" * 3000, "void f<(g<" + "x" * 5000])
def test_no_name_is_too_odd_to_be_cut(name: str) -> None:
    assert len(short_name(name, 30)) <= 30


def test_control_characters_are_shown_as_such() -> None:
    assert printable("a\x1b[31m\u202eb\n") == "a�[31m�b�"

"""Model FLOPs utilisation: the share of a card's dense peak that training uses."""

import re

# Dense TFLOP/s (no sparsity), as NVIDIA's data sheets of the cards print them: V100 (2020), T4 (2019), A10 (2022),
# A30 (2021), A100 (2021), L4 (2023), L40S (2023), H100 (2023), H200 (2024); where a sheet prints the value with
# sparsity, half of it. float32 means TF32 where a card has it: that is what PyTorch's convolutions use by default.
_CARDS: tuple[tuple[str, dict[str, float]], ...] = (
    (r"Tesla V100-SXM[23].*", {"float16": 125.0, "float32": 15.7}),
    (r"Tesla V100-PCIE.*", {"float16": 112.0, "float32": 14.0}),
    (r"Tesla T4", {"float16": 65.0, "float32": 8.1}),
    (r"A10", {"float16": 125.0, "bfloat16": 125.0, "float32": 62.5}),
    (r"A30", {"float16": 165.0, "bfloat16": 165.0, "float32": 82.0}),
    (r"A100[- ].*", {"float16": 312.0, "bfloat16": 312.0, "float32": 156.0}),
    (r"L4", {"float16": 121.0, "bfloat16": 121.0, "float32": 60.0}),
    (r"L40S", {"float16": 362.0, "bfloat16": 362.0, "float32": 183.0}),
    (r"H100 PCIe", {"float16": 756.0, "bfloat16": 756.0, "float32": 378.0}),
    (r"H100 80GB HBM3", {"float16": 989.0, "bfloat16": 989.0, "float32": 494.0}),
    (r"H200", {"float16": 989.0, "bfloat16": 989.0, "float32": 494.0}),
)


def dense_peak_flops(device_name: str, dtype: str) -> float | None:
    """Dense peak in FLOP/s of a card under the name that CUDA gives it; None for unknown cards and for CPUs.

    Source: NVIDIA's data sheet of each card (see the table above).
    """
    name = device_name.strip().removeprefix("NVIDIA ")
    if " MIG " in f" {name} ":
        return None  # a slice of a card has a part of its peak only
    for pattern, peaks in _CARDS:
        if re.fullmatch(pattern, name):
            tera = peaks.get(dtype)
            return None if tera is None else tera * 1e12
    return None


def why_no_peak(device: str, device_name: str, dtype: str) -> str | None:
    """Why dense_peak_flops gives none for a device ("cpu", "cuda" or "tpu") and dtype; None where it gives one."""
    if device == "cpu":
        return "it was measured on a CPU, for which no data sheet gives a peak: it changes with clock and instructions"
    if dense_peak_flops(device_name, dtype) is not None:
        return None
    if " MIG " in f" {device_name} ":
        return f"{device_name} is a slice of a card, which has a part of its peak only"
    others = [other for other in ("float32", "float16", "bfloat16") if dense_peak_flops(device_name, other) is not None]
    if others:
        return f"the data sheet of {device_name} gives no peak for {dtype}, only for {' and '.join(others)}"
    return f"the peak of {device_name or 'an unknown device'} is not in this package's table (results/mfu.py)"


def model_flops_utilisation(
    flops_per_image: float | None, images_per_s_per_rank: float | None, device_name: str, dtype: str
) -> float | None:
    """flops_per_image (forward and backward) * images_per_s_per_rank / dense peak; a fraction, None where unknown."""
    peak = dense_peak_flops(device_name, dtype)
    if not flops_per_image or images_per_s_per_rank is None or peak is None:
        return None
    return flops_per_image * images_per_s_per_rank / peak

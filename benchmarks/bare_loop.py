"""The step of an arm in a loop that does nothing else: what the product's own loop is held against.

No logging, no counting, no package of ours. Prints one JSON line: images per second over the timed steps.

    python benchmarks/bare_loop.py --arm kernel --amp_dtype float16 --batch_size 128 --steps 220
"""

import argparse
import json
import time

import torch
import torchvision

NUM_BATCHES = 8


def main() -> None:
    options = read_options()
    device = torch.device(options.device)
    torch.manual_seed(0)
    strong = options.arm in ("kernel", "inductor")
    memory_format = torch.channels_last if strong else torch.contiguous_format
    torch.backends.cudnn.benchmark = strong
    model = torchvision.models.get_model(options.model, num_classes=1000).to(device, memory_format=memory_format)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6, fused=True if strong else None)
    forward = torch.compile(model, mode=options.compile_mode) if options.arm == "inductor" else model
    dtype = getattr(torch, options.amp_dtype)
    amp = dtype is not torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    criterion = torch.nn.CrossEntropyLoss()
    shape = (options.batch_size, 3, options.image_size, options.image_size)
    batches = [
        (
            torch.randn(shape).to(memory_format=memory_format).to(device),
            torch.randint(1000, (options.batch_size,)).to(device),
        )
        for _ in range(NUM_BATCHES)
    ]
    begin = 0.0
    for step in range(options.steps):
        if step == options.warmup_steps:
            finish(device)
            begin = time.perf_counter()
        images, target = batches[step % NUM_BATCHES]
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype if amp else torch.bfloat16, enabled=amp):
            loss = criterion(forward(images), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    finish(device)
    seconds = time.perf_counter() - begin
    timed = options.steps - options.warmup_steps
    print(json.dumps({"arm": options.arm, "images_per_s": timed * options.batch_size / seconds, "loss": loss.item()}))


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def read_options() -> argparse.Namespace:
    """Options of the command line, with the article's settings as defaults."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--arm", choices=("eager", "kernel", "inductor"), required=True)
    parser.add_argument("--compile_mode", default="default", help="torch.compile's mode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--amp_dtype", default="float16", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--warmup_steps", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""One optimizer step over all workers and passes: gradients, their norms, votes, the learning rate."""

from __future__ import annotations

import time
import types
import warnings
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .elastic_group import Group


class ElasticModel(torch.nn.Module):
    """The model as the training loop sees it: the same object in whatever group."""

    def __init__(self, module: torch.nn.Module, stepper: Stepper) -> None:
        super().__init__()
        self.module = module
        object.__setattr__(self, "_stepper", stepper)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._stepper.forward(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    group = optimizer.param_groups[0]
    if type(optimizer) is torch.optim.SGD:
        return "momentum" if group["momentum"] else "sgd"
    if type(optimizer) is torch.optim.Adam:
        return "adam"
    if type(optimizer) is torch.optim.AdamW:
        return "adamw"
    warnings.warn(
        f"{type(optimizer).__name__}: the noise of its gradient is measured as if it were SGD without momentum, since only SGD, Adam and AdamW have a "
        "measure of their own. Batch and learning rate are adapted by that measure. If the learning rate is to stay as your script sets it, write "
        "`scaling: none` under `trial` in the study file",
        stacklevel=4,
    )
    return "sgd"


class Stepper:
    """Takes the place of `optimizer.step`, and of what DDP does with gradients."""

    def __init__(self, training: Any, module: torch.nn.Module, optimizer: torch.optim.Optimizer, unused: bool) -> None:
        self.training, self.module, self.optimizer = training, module, optimizer
        self.group: Group | None = None
        self._ddp: DistributedDataParallel | None = None
        self._unused = unused
        self.kind = _kind(optimizer)
        first = optimizer.param_groups[0]
        training.set_optimizer(self.kind, float(first.get("betas", (0.0, 0.0))[1]), float(first.get("eps", 1e-8)))
        self._real_step, self._real_zero = optimizer.step, optimizer.zero_grad
        optimizer.step = types.MethodType(lambda _, closure=None: self.step(closure), optimizer)
        optimizer.zero_grad = types.MethodType(lambda _, set_to_none=True: self.zero_grad(set_to_none), optimizer)
        self.parameters = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
        self._buffers = [b for b in module.buffers()]
        self._kept: list[torch.Tensor] = []
        self._before: list[torch.Tensor | None] | None = None
        self.scale, self.seed = 1.0, 0
        self.leave = self.retune = self.more_passes = self.crowded = False
        #: The optimizer is at work: what fails then leaves a state that is neither that before the step nor that after it.
        self.is_updating = False
        self.begin_nothing()

    def begin_nothing(self) -> None:
        self.passes, self.total, self.comparing, self.keep, self.at = [], 1, None, False, -1
        self.broken: str | None = None
        self.is_settled = self.is_done = True
        self.accumulating = False

    # --- groups ------------------------------------------------------------------------------------------------------------------
    def join(self, group: Group | None) -> None:
        self.drop()
        self._real_zero(set_to_none=True)
        self._before = None
        self.group = group
        if group is not None:
            with warnings.catch_warnings():
                # What later versions of PyTorch have in place of `broadcast_buffers` is not known to earlier ones.
                warnings.simplefilter("ignore", FutureWarning)
                self._ddp = DistributedDataParallel(
                    self.module, process_group=group.pg, init_sync=False, broadcast_buffers=False,
                    gradient_as_bucket_view=True, find_unused_parameters=self._unused,
                )
            self._ddp.register_comm_hook(None, self._hook)

    def drop(self) -> None:
        self._ddp = None
        if self.group is not None:
            self.group.close()
        self.group = None

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size

    # --- a step ------------------------------------------------------------------------------------------------------------------
    def begin(self, plan: Any, leave: bool, retune: bool) -> None:
        self.passes, self.total, self.comparing, self.keep, step, self.more_passes = plan
        self.leave, self.retune = leave, retune
        self.at, self.broken, self.is_settled, self.is_done = -1, None, False, False
        self.left = self.retuned = False
        self._votes = self._stash = None
        self._local, self._began = 0.0, time.perf_counter()
        self.accumulating = False
        self.rate = float(self.optimizer.param_groups[0]["lr"])
        rank = 0 if self.group is None else self.group.rank
        # Random numbers follow from the step and the worker, so that it can be taken again.
        seed = (self.seed ^ (step + 1) * 0x9E3779B97F4A7C15 ^ rank << 32) & (1 << 63) - 1
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed(seed)
        if self._buffers:
            if not self._kept:
                self._kept = [torch.empty_like(b) for b in self._buffers]
            for kept, buffer in zip(self._kept, self._buffers):
                kept.copy_(buffer)

    @property
    def is_last(self) -> bool:
        return self.at >= len(self.passes) - 1

    def next_pass(self) -> None:
        if self.at >= 0 and not self.accumulating:
            self._pass_done()
        self.at += 1
        self.training.attempt(len(self.passes[self.at]))
        before = len(self.passes[self.at - 1]) if self.at else 0
        if self.at and self._stash is None and len(self.passes[self.at]) != before:
            # Gradients so far count for as many examples as those to come.
            grads = [p.grad for p in self.parameters if p.grad is not None]
            if grads:
                torch._foreach_mul_(grads, before / max(1, len(self.passes[self.at])))
        self.accumulating = self.at > 0
        self._is_passed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._ddp is None or self.is_settled or not torch.is_grad_enabled() or not self.module.training:
            return self.module(*args, **kwargs)
        self._ddp.require_backward_grad_sync = self.is_last
        return self._ddp(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self.accumulating:
            self._real_zero(set_to_none=set_to_none)

    def _share(self) -> float:
        return len(self.passes[self.at]) / self.total

    def _pass_done(self) -> None:
        """A pass that is not the last one."""
        self.accumulating = True
        if self._is_passed or self.size > 1 or self.comparing != "passes":
            self._is_passed = True
            return
        self._is_passed = True
        self._measure_pass()
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        if self._stash is None:
            self._stash = [g * self._share() for g in grads]
        else:
            torch._foreach_add_(self._stash, grads, alpha=self._share())
        for p in self.parameters:
            p.grad = None

    def _measure_pass(self) -> None:
        grads = [p.grad for p in self.parameters]
        self._local += self._share() ** 2 * self._norm(self.parameters, grads)

    def _norm(self, parameters: list[Any], grads: list[Any]) -> float:
        """|Pg|^2."""
        sums = []
        moments = self._moments() if self.kind in ("adam", "adamw") else None
        for p, g in zip(parameters, grads):
            if g is None:
                continue
            g = g.detach()
            if moments is not None and p in moments:
                second, correction, eps = moments[p]
                g = g / ((second / correction).sqrt_().add_(eps))
            sums.append(torch.linalg.vector_norm(g, dtype=torch.float32 if g.dtype in (torch.float16, torch.bfloat16) else None))
        if not sums:
            return 0.0
        return float(torch.stack([one.double() for one in sums]).square_().sum()) / self.scale**2

    def _moments(self) -> dict[Any, Any] | None:
        found = {}
        for group in self.optimizer.param_groups:
            eps = float(group["eps"])
            correction = self.training.bias_correction(self.kind, float(group["betas"][1]), eps)
            if correction is None:
                return None
            key = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
            for p in group["params"]:
                if key in self.optimizer.state.get(p, {}):
                    found[p] = (self.optimizer.state[p][key], correction, eps)
        return found

    def _hook(self, _, bucket):  # DDP refuses annotations that are texts.
        buffer, group = bucket.buffer(), self.group
        done: torch.futures.Future = torch.futures.Future()
        try:
            if self.broken is not None or group is None:
                raise RuntimeError(self.broken or "the group is gone")
            buffer.mul_(self._share())
            if self.comparing == "workers":
                self._local += self._norm(bucket.parameters(), bucket.gradients())
            reduced = group.pg.allreduce([buffer]).get_future()
            if bucket.is_last():
                mine = [float(self.leave), float(self.retune), float(self.more_passes), self._local]
                votes = torch.tensor(mine, dtype=torch.float64, device=buffer.device)
                self._votes = (votes, group.pg.allreduce([votes]))
        except RuntimeError as error:
            self._break(error)
            done.set_result(buffer)
            return done

        def received(future: torch.futures.Future) -> torch.Tensor:
            try:
                return future.value()[0]
            except RuntimeError as error:
                self._break(error)
                return buffer

        return reduced.then(received)

    def _break(self, error: BaseException) -> None:
        if self.broken is None:
            self.broken = str(error).splitlines()[0]

    def settle(self) -> None:
        """After the last pass: gradients are those of the whole batch, and all know what was agreed."""
        if self.is_settled:
            return
        self.is_settled = True
        if self.group is None:
            self._settle_alone()
            return
        if self._votes is None and self.broken is None:
            raise RuntimeError("the last pass of a step has had no backward pass through the elastic model; every batch needs one")
        try:
            if self.broken is None:
                votes, work = self._votes
                work.wait()
        except RuntimeError as error:
            self._break(error)
        if self.broken is not None:
            self.roll_back()
            return
        leave, retune, more, local = votes.tolist()
        self.crowded = more > 0.5
        self.left, self.retuned = leave > self.size - 0.5, retune > self.size - 0.5
        self._measured = (self.size, self.total / self.size, local * self.size) if self.comparing == "workers" else None

    def roll_back(self) -> None:
        """The step under way has not happened: a forward pass moves the running statistics of batch normalization."""
        with torch.no_grad():
            for kept, buffer in zip(self._kept, self._buffers):
                buffer.copy_(kept)
        self._real_zero(set_to_none=True)

    def _settle_alone(self) -> None:
        self.crowded = self.more_passes
        self.left, self.retuned, self._measured = self.leave, self.retune, None
        if self._stash is not None:
            self._measure_pass()
            self._measured = (len(self.passes), self.total / len(self.passes), self._local * len(self.passes))
            for p, sum_ in zip(self.parameters, self._stash):
                p.grad = sum_ if p.grad is None else sum_.add_(p.grad, alpha=self._share())
        elif len(self.passes) > 1:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], self._share())

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            raise TypeError("optimizers that take a closure, such as LBFGS, cannot be used in elastic trials")
        if self.is_done:
            return
        if not self.is_last:
            self._pass_done()
            return
        self.settle()
        if self.broken is not None:
            return
        self._compare()
        factor = self.training.learning_rate_factor()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate * factor
        self.is_updating = True
        try:
            self._real_step()
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates):
                group["lr"] = rate
        self.is_updating = False
        self.rate = float(rates[0]) * factor
        self.end()

    def _compare(self) -> None:
        grads = [p.grad for p in self.parameters]
        scale, self.scale = self.scale, 1.0  # They are unscaled by now.
        if self._measured is not None:
            count, examples, mean = self._measured
            self.training.measure(count, examples, mean, self._norm(self.parameters, grads))
        elif self.comparing == "steps" and self._before is not None:
            pairs = [(p, a, p.grad) for p, a in zip(self.parameters, self._before) if a is not None and p.grad is not None]
            every, old, new = [p for p, _, _ in pairs], [a for _, a, _ in pairs], [b for _, _, b in pairs]
            difference = [b - a for a, b in zip(old, new)]
            self.training.measure_consecutive(
                float(self.total), self._norm(every, old), self._norm(every, new), self._norm(every, difference)
            )
        self._before = [None if g is None else g.detach().clone() for g in grads] if self.keep else None
        self.scale = scale

    def end(self) -> None:
        """The step is complete, with or without an update."""
        if not self.is_done and self.broken is None:
            self.is_done, self.accumulating = True, False
            # How long a step takes in which somebody did more than was planned says nothing of the plan.
            self.training.stepped(None if self.crowded else time.perf_counter() - self._began, self.rate)

    def leave_loop(self) -> None:
        """The loop asks for the next step: whatever it has left out of this one."""
        if self.at >= 0 and not self.is_done:
            self.settle()
            self.end()


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` that knows of passes: it updates only after the last one of a step."""

    def __init__(self, stepper: Stepper, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self._stepper = stepper

    def scale(self, outputs: Any) -> Any:
        self._stepper.scale = self.get_scale()
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self._stepper.is_last:
            self._stepper.settle()
            if self._stepper.broken is None:
                super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self._stepper.is_last:
            return optimizer.step()
        self._stepper.settle()
        return None if self._stepper.broken is not None else super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        if self._stepper.is_last and self._stepper.broken is None:
            super().update(new_scale)

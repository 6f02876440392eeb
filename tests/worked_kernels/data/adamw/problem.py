"""A step of AdamW (Loshchilov and Hutter, 2019) on parameters and moments that keep their place."""

from evotune.problems import InOut, UserProblem


class AdamW(UserProblem):
    sizes = ("n",)
    dtypes = ("float32",)
    constants = {
        **{"lr": 1e-3, "step": 10},
        **{"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01},
    }
    ranges = {"lr": (1e-5, 1e-1), "step": range(1, 10_001)}

    def inputs(self, n):
        return {
            "p": InOut((n,)),
            "m": InOut((n,)),
            "v": InOut((n,), "float32", (1e-6, 10.0)),
            "g": (n,),
        }

    def outputs(self, n):
        return {}

    def operations(self, n):
        return 14 * n

    def compute(self, p, m, v, g, lr, step, beta1, beta2, eps, decay):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        scale = (v / (1 - beta2**step)).sqrt() + eps
        return {"p": p - lr * (m / (1 - beta1**step) / scale + decay * p), "m": m, "v": v}

    def baselines_of(self, p, m, v, g, lr, step, beta1, beta2, eps, decay):
        def in_place():
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            scale = (v / (1 - beta2**step)).sqrt_().add_(eps)
            p.mul_(1 - lr * decay).addcdiv_(m, scale, value=-lr / (1 - beta1**step))
            return {"p": p, "m": m, "v": v}

        def eager():
            return self.compute(p, m, v, g, lr, step, beta1, beta2, eps, decay)

        return {"torch:in_place": in_place, "torch:eager": eager}

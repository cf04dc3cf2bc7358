"""Ops of the glm5_next hybrid: the equation, fast plain torch, and (GPU) Triton."""

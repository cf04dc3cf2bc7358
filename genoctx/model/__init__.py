"""The glm5_next text model; every layer is ``layer(chunk, carry) -> (chunk, carry)``."""

"""Write checkpoints in the formats of other runtimes: GGUF for llama.cpp, and ONNX."""

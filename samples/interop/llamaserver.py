"""llama.cpp's server, out of a Python package that ships it built: llamaserver.py MODEL.gguf PORT. It runs until it is ended."""

import sys, threading

import xllamacpp as x

p = x.CommonParams()
p.model.path = sys.argv[1]
p.hostnames, p.port = ["127.0.0.1"], int(sys.argv[2])
p.n_ctx, p.n_parallel, p.n_gpu_layers, p.cpuparams.n_threads = 8192, 4, 0, 2
p.endpoint_metrics, p.use_jinja, p.model_alias = True, True, {"tiny"}
server = x.Server(p)
print(x.BUILD_INFO, server.listening_address, flush=True)
threading.Event().wait()

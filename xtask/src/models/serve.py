"""Serves one model with llama.cpp on a port of this machine, until its standard input ends.

usage: serve.py MODEL.gguf CONTEXT
The first line of its output is the address. The package is xllamacpp, which has llama.cpp's own HTTP server.
"""

import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = int(sys.argv[2])
params.n_parallel = 1
params.hostnames = ["127.0.0.1"]
params.port = 0
params.use_jinja = True
params.warmup = False
# More threads wait for each other on a machine that does something else.
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()

package deploy

import "slices"

// dialect is what a kind of server is known to answer, and where. Ports and paths: the servers' own documentation.
type dialect struct {
	port   int                 // usual port; 0: none
	health string              // answers 2xx once it can serve
	info   []string            // JSON pages that say what it is
	probes map[string][]string // commands that a container of it can run for the snapshot
}

// python asks a Python server's own interpreter what it runs on. Each line that cannot be had is left out.
var python = map[string][]string{
	"python": {"python3", "-c", `import importlib.metadata as m, json, re, sys
out = {"python": sys.version.split()[0]}
for p in ("vllm", "sglang", "tensorrt_llm", "lmdeploy", "torch", "transformers", "flash_attn", "flashinfer-python", "triton", "nvidia-nccl-cu12", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu13", "nvidia-cublas", "nvidia-cudnn-cu13"):
    try: out[p] = m.version(p)
    except Exception: continue
    try: out[p + "_commit"] = re.search(r"commit_id\s*=\s*['\"](\w+)", m.distribution(p).locate_file(p + "/_version.py").read_text())[1]
    except Exception: pass
try:
    import torch
    out["cuda"] = torch.version.cuda
    out["cudnn"] = torch.backends.cudnn.version()
    out["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception: pass
print(json.dumps(out))`},
}

var dialects = map[string]dialect{
	"":         {health: "/v1/models", info: []string{"/version", "/v1/models"}},
	"openai":   {health: "/v1/models", info: []string{"/version", "/v1/models"}},
	"vllm":     {port: 8000, health: "/health", info: []string{"/version", "/v1/models", "/server_info?config_format=json"}, probes: python},
	"sglang":   {port: 30000, health: "/health", info: []string{"/get_server_info", "/get_model_info", "/v1/models"}, probes: python},
	"tgi":      {port: 80, health: "/health", info: []string{"/info", "/v1/models"}, probes: python},
	"trtllm":   {port: 8000, health: "/health", info: []string{"/version", "/v1/models"}, probes: python},
	"llamacpp": {port: 8080, health: "/health", info: []string{"/props", "/v1/models"}},
	"lmdeploy": {port: 23333, health: "/v1/models", info: []string{"/v1/models"}, probes: python},
	"sim":      {port: 8000, health: "/health", info: []string{"/version", "/v1/models"}},
}

// Dialects lists the kinds of server whose usual port, health path and version pages are known, sorted.
func Dialects() []string {
	names := slices.DeleteFunc(sortedKeys(dialects), func(n string) bool { return n == "" })
	return names
}

/* flag_help.h - the help of flags that several commands have. */
#ifndef FLAG_HELP_H
#define FLAG_HELP_H

#define PRECISION_HELP                                                                                                 \
    "type of the weights and, on a GPU, of the arithmetic: auto, fp32, bf16 or fp16; auto = the checkpoint's, but "    \
    "bf16 on a GPU where that is fp32"
#define THREADS_HELP                                                                                                   \
    "compute threads of the CPU backend; auto = the cores that the process may use, or its CPU quota where that is "   \
    "less"
#define DETERMINISTIC_HELP "the same bits in steps of any size, on a GPU too"
#define SYNTHETIC_HELP                                                                                                 \
    "random weights of a published shape instead: rodimus-1.4b, rodimus-plus-1.6b, rodimus-plus-1.6b-w1024, "          \
    "rodimus-plus-4b"
#define WEIGHTS_HELP "fp8 (GPU), int8 or int4: the large matrices in fewer bits; auto, as the directory stores them"
#define WINDOW_DTYPE_HELP                                                                                              \
    "type of Rodimus+'s windows: auto, the activations'; fp8 (GPU), half of it; int8 (CPU), a quarter of fp32"
#define STATE_DTYPE_HELP "type of the states S: auto, fp32; bf16: half of their bytes"
#define WINDOW_DTYPES    "auto|fp32|bf16|fp16|fp8|int8"
#define STATE_DTYPES     "auto|fp32|bf16"
#define PROMPT_PRODUCTS_HELP                                                                                           \
    "prompts' products on a GPU: auto: by cuBLASLt where it is there and no kernel of ours is made for them; own: "    \
    "never; library: always"
#define ADAPTER_HELP                                                                                                   \
    "directory of a PEFT LoRA adapter, which is merged into the weights: adapter_config.json, "                        \
    "adapter_model.safetensors"
#define STATE_URL_HELP      "s3://BUCKET/PREFIX: states are objects of this store, for all servers that name it"
#define STATE_ENDPOINT_HELP "http(s)://HOST[:PORT]; without it AWS's own"
#define STATE_REGION_HELP   "without it AWS_REGION, AWS_DEFAULT_REGION or us-east-1"
#define STATE_STYLE_HELP    "where the bucket's name goes: the path, or the host (virtual); auto = path with an endpoint"
#define STATE_CREDENTIALS_HELP                                                                                         \
    "like ~/.aws/credentials; without it AWS_ACCESS_KEY_ID, else that file; SIGHUP reads it again"
#define STATE_STORE_HELP                                                                                               \
    "what conversations take of the store; 0 = half of state_disk_bytes, or beside state_dir no limit"
#define STATE_TIMEOUT_HELP "of a call to the store with its repeats; bytes add a second a MiB at most"

#endif

#!/bin/bash
set -e
python tools/preprocess_data.py --input corpus.jsonl --output-prefix my-gpt2 --vocab-file gpt2-vocab.json --tokenizer-type GPT2BPETokenizer --merge-file gpt2-merges.txt --append-eod --workers 16

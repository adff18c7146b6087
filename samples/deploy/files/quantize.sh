#!/bin/sh
# What a matrix's prepare step runs: make models/candidate-$1 with the tool of your choice, or fail. It runs in the directory of the
# deployment file, only where models/candidate-$1 is missing.
echo "make models/candidate-$1 here, with your quantization tool" >&2
exit 1

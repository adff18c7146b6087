package netlab

package formats

import (
	"errors"
	"fmt"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// ResultRow is one figure of one run of a sweep: long form, so that a table of any axes opens without a schema of its own.
type ResultRow struct {
	Cell   string            `parquet:"cell,dict"`
	Params map[string]string `parquet:"params"` // axis to value
	Repeat int32             `parquet:"repeat"` // from 1; 0 is the median over the repeats
	Valid  bool              `parquet:"valid"`
	Error  string            `parquet:"error,dict"`
	Figure string            `parquet:"figure,dict"` // "" of a cell that failed
	Value  *float64          `parquet:"value"`
}

// WriteResults writes a sweep's figures as one Parquet file, under its own name once it is whole.
func WriteResults(path string, rows []ResultRow) error {
	f, err := os.Create(path + ".part")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	w := newSealed[ResultRow](f, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy(createdBy, "", ""))
	_, err = w.Write(rows)
	err = errors.Join(err, w.Close(), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".part", path)
	}
	if err != nil {
		return fmt.Errorf("write results %s: %w", path, errors.Join(err, os.Remove(path+".part")))
	}
	return nil
}

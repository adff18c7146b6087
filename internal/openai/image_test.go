package openai

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// TestImagePixels compares with the standard library's encoders.
func TestImagePixels(t *testing.T) {
	img := image.NewPaletted(image.Rect(0, 0, 640, 480), color.Palette{color.Black, color.White})
	var p, g, j bytes.Buffer
	if png.Encode(&p, img) != nil || gif.Encode(&g, img, nil) != nil || jpeg.Encode(&j, img, nil) != nil {
		t.Fatal("encode")
	}
	for name, b := range map[string][]byte{"png": p.Bytes(), "gif": g.Bytes(), "jpeg": j.Bytes()} {
		data := base64.StdEncoding.EncodeToString(b)
		for shape, part := range map[string]string{
			"chat":     `{"type":"image_url","image_url":{"url":"data:image/` + name + `;base64,` + data + `"}}`,
			"response": `{"type":"input_image","image_url":"data:image/` + name + `;base64,` + data + `"}`,
			"message":  `{"type":"image","source":{"type":"base64","media_type":"image/` + name + `","data":"` + data + `"}}`,
		} {
			x := &formats.Exchange{}
			if err := ReadRequest(x, "/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":[`+part+`,`+part+`]}]}`), nil); err != nil {
				t.Fatal(err)
			}
			if x.ImageCount.V != 2 || x.ImagePixels.V != 2*640*480 {
				t.Errorf("%s %s: %v images, %v pixels", name, shape, x.ImageCount, x.ImagePixels)
			}
		}
	}
	x := &formats.Exchange{}
	ReadRequest(x, "/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a/b.png"}}]}]}`), nil)
	if x.ImageCount.V != 1 || x.ImagePixels.Valid {
		t.Errorf("a link: %v images, %v pixels", x.ImageCount, x.ImagePixels)
	}
}

"""Export of a trained model to one ONNX file, which other programs run without this package and without torch."""

//! ONNX models through the reader and the interpreter, on the node cases that ONNX itself
//! publishes (`cargo xtask models` fetches them).

mod cases;
mod conformance;
mod damaged;
mod refusals;
mod table;

//! ONNX models through the reader, the interpreter, the importer and the CPU device, on the node
//! cases that ONNX itself publishes (`cargo xtask models` fetches them).

mod cases;
mod conformance;
mod damaged;
mod device;
mod refusals;
mod table;
mod values;

//! Generates the messages and the gRPC service from `proto/`, and their descriptors for the text
//! form of configurations. No `protoc` is needed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/grpc_service.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(
        out.join("protocol.bin"),
        prost::Message::encode_to_vec(&files),
    )?;
    tonic_prost_build::configure()
        .build_client(true)
        // Messages are weighed before they are decoded.
        .codec_path("crate::grpc::Weighed")
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .bytes(".inference.ModelRepositoryParameter.bytes_param")
        .compile_fds(files)?;
    Ok(())
}

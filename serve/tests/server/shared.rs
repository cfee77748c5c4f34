//! Memory that clients share with the server: that of GPUs there is none.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use lazybatch_serve::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryUnregisterRequest, SystemSharedMemoryRegisterRequest,
};
use tonic::Code;

use super::common::{call, start};

#[tokio::test]
async fn a_region_that_is_there_is_told_by_its_code() {
    let name = format!("lazybatch-test-{}", std::process::id());
    let object = std::path::Path::new("/dev/shm").join(&name);
    std::fs::write(&object, [0; 64]).unwrap();
    let mut server = start(|_| {}).await;
    let mut grpc = server.grpc().await;
    let region = |offset, byte_size| SystemSharedMemoryRegisterRequest {
        name: "r".into(),
        key: format!("/{name}"),
        offset,
        byte_size,
    };
    let beyond = grpc.system_shared_memory_register(region(512, 16)).await;
    let beyond = beyond.unwrap_err();
    assert_eq!(beyond.code(), Code::InvalidArgument);
    assert!(
        beyond.message().contains("of an object of 64 bytes"),
        "{beyond}"
    );
    grpc.system_shared_memory_register(region(0, 64))
        .await
        .unwrap();
    let again = grpc.system_shared_memory_register(region(0, 64)).await;
    let again = again.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    assert!(
        again.message().contains("'r' already in manager"),
        "{again}"
    );
    let path = "/v2/systemsharedmemory/region/r/register";
    let body = format!(r#"{{"key":"/{name}","offset":0,"byte_size":64}}"#);
    let (status, text) = call(server.http(), "POST", path, &body).await;
    assert!(
        status == 400 && text.contains("already in manager"),
        "{text}"
    );
    std::fs::remove_file(object).unwrap();
    drop(grpc);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn no_cuda_region_can_be_registered_and_there_is_none() {
    let mut server = start(|_| {}).await;
    let at = server.http();
    for (method, path, code, body) in [
        ("GET", "status", 200, "[]"),
        ("GET", "region/r/status", 404, "region: 'r'"),
        ("POST", "region/r/register", 501, "no CUDA shared memory"),
        ("POST", "region/r/unregister", 200, ""),
        ("POST", "unregister", 200, ""),
        ("POST", "elsewhere", 404, "no such path"),
    ] {
        let path = format!("/v2/cudasharedmemory/{path}");
        let (status, text) = call(at, method, &path, "{}").await;
        let told = text.split_once("\r\n\r\n").unwrap().1;
        assert!(status == code && told.contains(body), "{path}: {text}");
    }
    let mut grpc = server.grpc().await;
    let status = |name: &str| CudaSharedMemoryStatusRequest { name: name.into() };
    let all = grpc.cuda_shared_memory_status(status("")).await.unwrap();
    assert!(all.into_inner().regions.is_empty());
    let one = grpc.cuda_shared_memory_status(status("r")).await;
    assert_eq!(one.unwrap_err().code(), Code::NotFound);
    for name in ["", "r"] {
        let name = name.to_owned();
        let request = CudaSharedMemoryUnregisterRequest { name };
        grpc.cuda_shared_memory_unregister(request).await.unwrap();
    }
    let request = CudaSharedMemoryRegisterRequest::default();
    let refused = grpc.cuda_shared_memory_register(request).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unimplemented);
    drop(grpc);
    server.end();
    server.ended().await;
}

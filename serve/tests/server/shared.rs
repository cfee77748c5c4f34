//! Memory that clients share with the server: that of GPUs there is none.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use lazybatch_serve::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryUnregisterRequest,
};
use tonic::Code;

use super::common::{call, start};

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

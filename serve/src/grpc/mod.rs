//! The protocol over gRPC.

mod call;
mod infer;
mod pace;
mod weigh;

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use serde_json::Value as Json;
use tonic::{Request, Response, Status, Streaming};

use crate::error::Error;
use crate::http::{index_of, load_model, no_parameter, unload_model};
use crate::proto::grpc_inference_service_server::GrpcInferenceService;
use crate::proto::*;
use crate::repository::{Brought, FILE};
use crate::shm;
use crate::state::{SERVER_NAME, State};
use crate::telemetry::{self, Traced};

pub use call::{CallLayer, WATCH};
#[cfg(test)]
pub use pace::Call;
pub use pace::Pace;
pub use weigh::Weighed;

/// The service.
#[derive(Clone)]
pub struct Service {
    state: Arc<State>,
}

impl Service {
    /// Over what all calls share.
    pub fn new(state: Arc<State>) -> Self {
        Self { state }
    }
}

type Answered<T> = Result<Response<T>, Status>;

/// A setting of the log as gRPC has it.
fn log_value(value: &Json) -> log_settings_response::SettingValue {
    use log_settings_response::setting_value::ParameterChoice;
    let choice = match value {
        Json::Bool(b) => ParameterChoice::BoolParam(*b),
        Json::Number(n) => ParameterChoice::Uint32Param(n.as_u64().unwrap_or(0) as u32),
        other => ParameterChoice::StringParam(other.as_str().unwrap_or_default().to_owned()),
    };
    log_settings_response::SettingValue {
        parameter_choice: Some(choice),
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answered<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answered<ServerReadyResponse> {
        let ready = self.state.is_ready();
        Ok(Response::new(ServerReadyResponse { ready }))
    }

    async fn model_ready(&self, call: Request<ModelReadyRequest>) -> Answered<ModelReadyResponse> {
        let call = call.into_inner();
        let ready = match self.state.repository.get(&call.name, &call.version) {
            Ok(_) => self.state.is_running(),
            Err(Error::Invalid(message)) => return Err(Error::Invalid(message).into()),
            Err(_) => false,
        };
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Answered<ServerMetadataResponse> {
        Ok(Response::new(ServerMetadataResponse {
            name: SERVER_NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            extensions: self
                .state
                .extensions()
                .into_iter()
                .map(str::to_owned)
                .collect(),
        }))
    }

    async fn model_metadata(
        &self,
        call: Request<ModelMetadataRequest>,
    ) -> Answered<ModelMetadataResponse> {
        let call = call.into_inner();
        let served = self.state.repository.get(&call.name, &call.version)?;
        let versions = match call.version.is_empty() {
            true => self.state.repository.versions(&served.name),
            false => vec![served.version],
        };
        let tensors = |of: Vec<(String, &str, Vec<i64>)>| {
            of.into_iter()
                .map(
                    |(name, datatype, shape)| model_metadata_response::TensorMetadata {
                        name,
                        datatype: datatype.into(),
                        shape,
                    },
                )
                .collect()
        };
        Ok(Response::new(ModelMetadataResponse {
            name: served.name.clone(),
            versions: versions.iter().map(ToString::to_string).collect(),
            platform: served.platform.clone(),
            inputs: tensors(served.inputs()),
            outputs: tensors(served.outputs()),
        }))
    }

    async fn model_infer(&self, call: Request<ModelInferRequest>) -> Answered<ModelInferResponse> {
        let parent = telemetry::parent(&self.state, call.metadata().as_ref());
        let mut traced = Traced::grpc(&self.state, "ModelInfer", parent.as_ref());
        let answered = infer::run(&self.state, call.into_inner(), &mut traced).await;
        Ok(Response::new(traced.ends(answered)?))
    }

    async fn model_stream_infer(
        &self,
        call: Request<Streaming<ModelInferRequest>>,
    ) -> Answered<Self::ModelStreamInferStream> {
        let parent = telemetry::parent(&self.state, call.metadata().as_ref());
        let fails = call.metadata().get(infer::FAILS);
        let fails = fails.is_some_and(|told| told.as_bytes().eq_ignore_ascii_case(b"true"));
        let answers = infer::stream(self.state.clone(), call.into_inner(), parent, fails);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn model_config(
        &self,
        call: Request<ModelConfigRequest>,
    ) -> Answered<ModelConfigResponse> {
        let call = call.into_inner();
        let served = self.state.repository.get(&call.name, &call.version)?;
        Ok(Response::new(ModelConfigResponse {
            config: Some(served.config.clone()),
        }))
    }

    async fn model_statistics(
        &self,
        call: Request<ModelStatisticsRequest>,
    ) -> Answered<ModelStatisticsResponse> {
        let call = call.into_inner();
        let of = if call.name.is_empty() {
            self.state.repository.served()
        } else {
            self.state.repository.get_all(&call.name, &call.version)?
        };
        Ok(Response::new(ModelStatisticsResponse {
            model_stats: of.iter().map(|served| served.statistics()).collect(),
        }))
    }

    async fn repository_index(
        &self,
        call: Request<RepositoryIndexRequest>,
    ) -> Answered<RepositoryIndexResponse> {
        let index = index_of(&self.state, call.into_inner().ready).await?;
        let models = index
            .into_iter()
            .map(|i| repository_index_response::ModelIndex {
                name: i.name,
                version: i.version,
                state: i.state.into(),
                reason: i.reason,
            });
        Ok(Response::new(RepositoryIndexResponse {
            models: models.collect(),
        }))
    }

    async fn repository_model_load(
        &self,
        call: Request<RepositoryModelLoadRequest>,
    ) -> Answered<RepositoryModelLoadResponse> {
        use model_repository_parameter::ParameterChoice;
        let call = call.into_inner();
        let mut config = None;
        let mut files = Vec::new();
        for (name, value) in call.parameters {
            match value.parameter_choice {
                Some(ParameterChoice::StringParam(text)) if name == "config" => config = Some(text),
                Some(ParameterChoice::BytesParam(bytes)) if name.starts_with(FILE) => {
                    files.push((name, bytes));
                }
                _ => return Err(no_parameter(&name).into()),
            }
        }
        let tab = call::tab();
        let bring = move || {
            let _holds = tab;
            let mut brought = Brought::of_config(config);
            for (name, bytes) in files {
                brought.write(&name, &mut &bytes[..])?;
            }
            Ok(brought)
        };
        load_model(&self.state, call.model_name, bring).await?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        call: Request<RepositoryModelUnloadRequest>,
    ) -> Answered<RepositoryModelUnloadResponse> {
        use model_repository_parameter::ParameterChoice;
        self.state.repository.check_explicit("load / unload")?;
        let call = call.into_inner();
        let dependents = match call.parameters.get("unload_dependents") {
            None => false,
            Some(p) => match &p.parameter_choice {
                Some(ParameterChoice::BoolParam(dependents)) => *dependents,
                other => {
                    let what = "parameter 'unload_dependents'";
                    return Err(Error::expected(what, "true or false", format!("{other:?}")).into());
                }
            },
        };
        unload_model(&self.state, call.model_name, dependents).await?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        call: Request<SystemSharedMemoryStatusRequest>,
    ) -> Answered<SystemSharedMemoryStatusResponse> {
        use system_shared_memory_status_response::RegionStatus;
        let regions = self.state.regions.status(&call.into_inner().name)?;
        let regions = regions.into_iter().map(|(name, r)| {
            let status = RegionStatus {
                name: name.clone(),
                key: r.key.clone(),
                offset: r.offset,
                byte_size: r.byte_size,
            };
            (name, status)
        });
        Ok(Response::new(SystemSharedMemoryStatusResponse {
            regions: regions.collect(),
        }))
    }

    async fn system_shared_memory_register(
        &self,
        call: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Answered<SystemSharedMemoryRegisterResponse> {
        let call = call.into_inner();
        let regions = &self.state.regions;
        regions.register(&call.name, &call.key, call.offset, call.byte_size)?;
        Ok(Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        call: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Answered<SystemSharedMemoryUnregisterResponse> {
        self.state.regions.unregister(&call.into_inner().name);
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        call: Request<CudaSharedMemoryStatusRequest>,
    ) -> Answered<CudaSharedMemoryStatusResponse> {
        match call.into_inner().name {
            all if all.is_empty() => Ok(Response::new(CudaSharedMemoryStatusResponse::default())),
            name => Err(shm::unknown_cuda(&name).into()),
        }
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Answered<CudaSharedMemoryRegisterResponse> {
        Err(shm::no_cuda().into())
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Answered<CudaSharedMemoryUnregisterResponse> {
        // There is none; one that is not there is no error.
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(
        &self,
        call: Request<TraceSettingRequest>,
    ) -> Answered<TraceSettingResponse> {
        let call = call.into_inner();
        let model = call.model_name;
        if !model.is_empty() {
            self.state.repository.get(&model, "")?;
        }
        let settings = call.settings.into_iter();
        let settings: BTreeMap<_, _> = settings.map(|(key, v)| (key, v.value)).collect();
        self.state.set_traces(&model, &settings)?;
        let now = self.state.traces.settings(&model).into_iter();
        let now = now.map(|(key, value)| (key, trace_setting_response::SettingValue { value }));
        Ok(Response::new(TraceSettingResponse {
            settings: now.collect(),
        }))
    }

    async fn log_settings(
        &self,
        call: Request<LogSettingsRequest>,
    ) -> Answered<LogSettingsResponse> {
        use log_settings_request::setting_value::ParameterChoice;
        let mut settings = BTreeMap::new();
        for (key, value) in call.into_inner().settings {
            let value = match value.parameter_choice {
                Some(ParameterChoice::BoolParam(b)) => Json::from(b),
                Some(ParameterChoice::Uint32Param(n)) => Json::from(n),
                Some(ParameterChoice::StringParam(s)) => Json::from(s),
                None => Json::Null,
            };
            settings.insert(key, value);
        }
        self.state.switches.set_log(&settings)?;
        let now = self.state.switches.log();
        let now = now.as_object().into_iter().flatten();
        let settings: HashMap<_, _> = now.map(|(k, v)| (k.clone(), log_value(v))).collect();
        Ok(Response::new(LogSettingsResponse { settings }))
    }
}

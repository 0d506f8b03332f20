//! [`Pods`]: a launcher that runs readers as pods of Kubernetes.
//!
//! A `PodTemplate` of the namespace describes a reader. Each reader is a pod of it, with a label that names the template. The
//! template owns its pods, so Kubernetes deletes them with it. A `Lease` of the same name says which operator acts.
//!
//! Invariants:
//! 1. Only the operator that holds the lease creates and deletes pods. Two of them at once, over a wrong clock, would start
//!    too many readers, and break nothing else.
//! 2. A pod is deleted with its own grace period, in which its reader answers what it has received.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ContainerPort, Pod, PodTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, Config};
use siltstone::clock::Clock;
use tokio::runtime::Runtime;

use super::control::{Addresses, Instance, Launcher};
use crate::output::Failure;

/// The label of the pods; its value is the name of their template.
const LABEL: &str = "siltstone.io/readers";
/// The names of the ports in the template.
const REQUESTS_PORT: &str = "redis";
const FIGURES_PORT: &str = "metrics";
/// The longest time for an answer of the API server.
const ANSWER: Duration = Duration::from_secs(10);
/// A lease that was not renewed for so long is free.
const LEASE: Duration = Duration::from_secs(15);
/// The time between two renewals.
const RENEWAL: Duration = Duration::from_secs(5);

/// Readers that are pods of Kubernetes.
pub(super) struct Pods {
    runtime: Runtime,
    api: Api<Pod>,
    templates: Api<PodTemplate>,
    leases: Api<Lease>,
    clock: Arc<dyn Clock>,
    /// That of the template, and of the lease.
    name: String,
    /// Names this operator in the lease.
    holder: String,
    /// The time of the last renewal.
    renewed: Option<Duration>,
    /// Another operator held the lease when it was last read.
    is_replaced: bool,
    /// Pods that this operator has asked to end.
    ending: BTreeSet<String>,
}

fn failed(deed: &str, error: &kube::Error) -> Failure {
    match error {
        // Its own text prints the whole answer.
        kube::Error::Api(status) => Failure::Io(format!("cannot {deed}: {}", status.message)),
        error => Failure::Io(format!("cannot {deed}: {error}")),
    }
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

impl Pods {
    /// Connects to the API server of the surrounding pod, or of the kubeconfig, and takes the lease.
    ///
    /// # Errors
    /// Another operator holds the lease; the template is not there, or does not name the ports.
    pub(super) fn new(
        name: &str,
        namespace: Option<&str>,
        clock: Arc<dyn Clock>,
    ) -> Result<Pods, Failure> {
        let runtime = runtime()?;
        let config = runtime.block_on(Config::infer());
        let config = config.map_err(|e| Failure::Io(format!("cannot find an API server: {e}")))?;
        Pods::at(runtime, config, name, namespace, clock)
    }

    /// As [`Pods::new`], for an API server.
    pub(super) fn at(
        runtime: Runtime,
        mut config: Config,
        name: &str,
        namespace: Option<&str>,
        clock: Arc<dyn Clock>,
    ) -> Result<Pods, Failure> {
        config.connect_timeout = Some(ANSWER);
        config.read_timeout = Some(ANSWER);
        let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
        let client = {
            // Its connections are tasks of this runtime.
            let _context = runtime.enter();
            Client::try_from(config).map_err(|e| failed("connect to the API server", &e))?
        };
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".to_owned());
        let started = clock.unix_time().as_micros();
        let mut pods = Pods {
            runtime,
            api: Api::namespaced(client.clone(), &namespace),
            templates: Api::namespaced(client.clone(), &namespace),
            leases: Api::namespaced(client, &namespace),
            clock,
            name: name.to_owned(),
            holder: format!("{host}-{}-{started}", std::process::id()),
            renewed: None,
            is_replaced: false,
            ending: BTreeSet::new(),
        };
        pods.hold()?;
        pods.template()?;
        Ok(pods)
    }

    /// The description of a pod, as it is now.
    fn template(&self) -> Result<Pod, Failure> {
        let name = &self.name;
        let template = self.runtime.block_on(self.templates.get(name));
        let template = template.map_err(|e| failed(&format!("read PodTemplate {name}"), &e))?;
        let uid = template.metadata.uid.unwrap_or_default();
        let described = template.template.unwrap_or_default();
        let mut metadata = described.metadata.unwrap_or_default();
        metadata.name = None;
        metadata.generate_name = Some(format!("{name}-"));
        metadata.labels.get_or_insert_default().insert(LABEL.to_owned(), name.clone());
        metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "PodTemplate".to_owned(),
            name: name.clone(),
            uid,
            controller: Some(true),
            block_owner_deletion: None,
        }]);
        let pod = Pod { metadata, spec: described.spec, status: None };
        for port in [REQUESTS_PORT, FIGURES_PORT] {
            if port_of(&pod, port).is_none() {
                let text = format!("PodTemplate {name} has no container port with the name {port}");
                return Err(Failure::Usage(text));
            }
        }
        Ok(pod)
    }

    /// Takes the lease, or renews it.
    fn hold(&mut self) -> Result<(), Failure> {
        let now = self.clock.unix_time();
        if self.renewed.is_some_and(|at| now >= at && now.saturating_sub(at) < RENEWAL) {
            return Ok(());
        }
        let name = self.name.clone();
        let found = self.runtime.block_on(self.leases.get_opt(&name));
        let found = found.map_err(|e| failed(&format!("read lease {name}"), &e))?;
        let other = found.as_ref().and_then(|it| self.other_holder(it, now));
        self.is_replaced = other.is_some();
        if let Some(other) = other {
            let text = format!("another operator, {other}, holds lease {name}");
            return Err(Failure::Io(text));
        }
        let time =
            i64::try_from(now.as_micros()).ok().and_then(|it| Timestamp::from_microsecond(it).ok());
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            renew_time: time.map(MicroTime),
            ..LeaseSpec::default()
        };
        let written = match found {
            None => {
                let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(spec) };
                self.runtime.block_on(self.leases.create(&PostParams::default(), &lease))
            }
            // With its version: another operator may take it at the same time.
            Some(mut lease) => {
                lease.spec = Some(spec);
                self.runtime.block_on(self.leases.replace(&name, &PostParams::default(), &lease))
            }
        };
        match written {
            Ok(_) => {
                self.renewed = Some(now);
                Ok(())
            }
            Err(error) if is_code(&error, 409) => {
                Err(Failure::Io(format!("another operator takes lease {name}")))
            }
            Err(error) => Err(failed(&format!("write lease {name}"), &error)),
        }
    }

    /// The operator that holds `lease`, if it is another one.
    fn other_holder(&self, lease: &Lease, now: Duration) -> Option<String> {
        let spec = lease.spec.as_ref()?;
        let holder =
            spec.holder_identity.as_ref().filter(|it| !it.is_empty() && **it != self.holder)?;
        let renewed = spec.renew_time.as_ref().map_or(0, |time| time.0.as_microsecond());
        let renewed = Duration::from_micros(u64::try_from(renewed).unwrap_or(0));
        let seconds = spec.lease_duration_seconds.and_then(|it| u64::try_from(it).ok());
        let lasts = seconds.map_or(LEASE, Duration::from_secs);
        (now < renewed + lasts).then(|| holder.clone())
    }

    fn delete(&mut self, name: &str, how: &DeleteParams) -> Result<(), Failure> {
        match self.runtime.block_on(self.api.delete(name, how)) {
            Ok(_) => Ok(()),
            Err(error) if is_code(&error, 404) => Ok(()),
            Err(error) => Err(failed(&format!("delete pod {name}"), &error)),
        }
    }

    /// The way a pod ended, or that somebody else ends it.
    fn end_of(&self, name: &str, pod: &Pod) -> Option<String> {
        let status = pod.status.as_ref();
        let phase = status.and_then(|it| it.phase.as_deref()).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            let why = status.and_then(|it| it.message.as_deref().or(it.reason.as_deref()));
            return Some(why.map_or(phase.to_owned(), |why| format!("{phase}: {why}")));
        }
        let is_foreign = pod.metadata.deletion_timestamp.is_some() && !self.ending.contains(name);
        is_foreign.then(|| "its pod is being deleted".to_owned())
    }
}

impl Launcher for Pods {
    fn start(&mut self) -> Result<String, Failure> {
        let pod = self.template()?;
        let pod = self.runtime.block_on(self.api.create(&PostParams::default(), &pod));
        let pod = pod.map_err(|e| failed("create a pod", &e))?;
        pod.metadata.name.ok_or_else(|| Failure::Io("a new pod has no name".to_owned()))
    }

    fn readers(&mut self) -> Result<Vec<Instance>, Failure> {
        self.hold()?;
        let ours = ListParams::default().labels(&format!("{LABEL}={}", self.name));
        let pods = self.runtime.block_on(self.api.list(&ours));
        let pods = pods.map_err(|e| failed("list pods", &e))?.items;
        let mut instances = Vec::new();
        for pod in pods {
            let Some(name) = pod.metadata.name.clone() else { continue };
            let end = self.end_of(&name, &pod);
            let mut trouble = None;
            if end.is_some() && pod.metadata.deletion_timestamp.is_none() {
                // It has no process any more. The others are looked at although it stays.
                let deleted = self.delete(&name, &DeleteParams::default());
                trouble = deleted.err().and_then(|it| it.text().map(ToString::to_string));
            }
            instances.push(Instance { name, addresses: addresses_of(&pod), end, trouble });
        }
        self.ending.retain(|name| instances.iter().any(|it| it.name == *name));
        Ok(instances)
    }

    fn end(&mut self, name: &str) -> Result<(), Failure> {
        self.ending.insert(name.to_owned());
        self.delete(name, &DeleteParams::default())
    }

    fn kill(&mut self, name: &str) -> Result<(), Failure> {
        self.delete(name, &DeleteParams::default().grace_period(0))
    }

    fn is_replaced(&self) -> bool {
        self.is_replaced
    }
}

impl Drop for Pods {
    /// Gives the lease back, so that the next operator need not wait for its end.
    fn drop(&mut self) {
        let Ok(Some(mut lease)) = self.runtime.block_on(self.leases.get_opt(&self.name)) else {
            return;
        };
        let Some(spec) =
            lease.spec.as_mut().filter(|it| it.holder_identity.as_ref() == Some(&self.holder))
        else {
            return;
        };
        spec.holder_identity = None;
        let _ =
            self.runtime.block_on(self.leases.replace(&self.name, &PostParams::default(), &lease));
    }
}

/// Starts the threads of the client.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Failure::Io(format!("cannot start threads: {e}")))
}

fn port_of(pod: &Pod, name: &str) -> Option<i32> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let mut ports = containers.iter().filter_map(|it| it.ports.as_deref()).flatten();
    let found = ports.find(|port: &&ContainerPort| port.name.as_deref() == Some(name));
    found.map(|port| port.container_port)
}

/// The addresses of a pod, once it has an IP address.
fn addresses_of(pod: &Pod) -> Option<Addresses> {
    let ip = pod.status.as_ref()?.pod_ip.as_deref().filter(|ip| !ip.is_empty())?;
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    let requests = format!("{host}:{}", port_of(pod, REQUESTS_PORT)?);
    let figures = format!("{host}:{}", port_of(pod, FIGURES_PORT)?);
    Some(Addresses { requests, figures })
}

#[cfg(test)]
mod tests;

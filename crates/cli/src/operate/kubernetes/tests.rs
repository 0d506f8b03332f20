//! Pods on an API server of this process, or on a real one: the one of the kubeconfig, if `SILTSTONE_KUBERNETES` is set. The
//! test is the agent of the node: it gives pods an address, and ends those that are to end.

mod server;

use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::api::core::v1::PodTemplate;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::*;
use crate::operate::control::{Control, Env, Times};
use crate::operate::decide::{Decider, Targets};
use crate::operate::figures::Figures;
use server::ApiServer;

/// A clock that a test sets, in seconds.
#[derive(Default)]
struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_800_000_000) + self.now()
    }
}

/// The API server, with an agent.
struct Node {
    runtime: Runtime,
    config: Config,
    clock: Arc<SetClock>,
    name: String,
    pods: Api<Pod>,
    templates: Api<PodTemplate>,
    leases: Api<Lease>,
    server: Option<ApiServer>,
}

impl Node {
    fn new(name: &str) -> Node {
        let runtime = runtime().unwrap();
        let is_real = std::env::var_os("SILTSTONE_KUBERNETES").is_some();
        let server = (!is_real).then(ApiServer::start);
        let config = match &server {
            Some(server) => Config::new(server.url().parse().unwrap()),
            None => runtime.block_on(Config::infer()).unwrap(),
        };
        let client = {
            let _context = runtime.enter();
            Client::try_from(config.clone()).unwrap()
        };
        let started = siltstone::clock::SystemClock::new().unix_time().as_nanos();
        let node = Node {
            runtime,
            config,
            clock: Arc::default(),
            name: format!("{name}-{started}"),
            pods: Api::default_namespaced(client.clone()),
            templates: Api::default_namespaced(client.clone()),
            leases: Api::default_namespaced(client),
            server,
        };
        node.describe(&["redis", "metrics"]);
        node
    }

    /// Makes the template, with these ports.
    fn describe(&self, ports: &[&str]) {
        let ports: Vec<_> = ports.iter().zip(6379..).collect();
        let ports: Vec<_> = ports
            .iter()
            .map(|(name, port)| json!({ "name": name, "containerPort": port }))
            .collect();
        let template = json!({
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": self.name },
            "template": {
                "metadata": { "labels": { "app": "siltstone" } },
                "spec": { "nodeName": "node", "terminationGracePeriodSeconds": 40, "containers": [{
                    "name": "reader", "image": "siltstone", "ports": ports,
                }] },
            },
        });
        let template: PodTemplate = serde_json::from_value(template).unwrap();
        let _ = self.runtime.block_on(self.templates.delete(&self.name, &DeleteParams::default()));
        self.runtime.block_on(self.templates.create(&PostParams::default(), &template)).unwrap();
    }

    fn launcher(&self) -> Result<Pods, Failure> {
        Pods::at(runtime().unwrap(), self.config.clone(), &self.name, None, self.clock.clone())
    }

    fn list(&self) -> Vec<Pod> {
        let ours = ListParams::default().labels(&format!("{LABEL}={}", self.name));
        self.runtime.block_on(self.pods.list(&ours)).unwrap().items
    }

    fn set_status(&self, name: &str, status: serde_json::Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let how = PatchParams::default();
        self.runtime.block_on(self.pods.patch_status(name, &how, &patch)).unwrap();
    }

    /// Gives all pods an address but those that failed, and ends those that are to end.
    fn run(&self) {
        for (at, pod) in self.list().into_iter().enumerate() {
            let name = pod.metadata.name.clone().unwrap();
            let has_failed = pod.status.is_some_and(|it| it.phase.as_deref() == Some("Failed"));
            if pod.metadata.deletion_timestamp.is_some() {
                let now = DeleteParams::default().grace_period(0);
                self.runtime.block_on(self.pods.delete(&name, &now)).unwrap();
            } else if !has_failed {
                self.set_status(
                    &name,
                    json!({ "phase": "Running", "podIP": format!("10.0.0.{}", at + 1) }),
                );
            }
        }
    }
}

impl Drop for Node {
    /// Leaves nothing on a real server. The pods of a template that is gone are deleted with it.
    fn drop(&mut self) {
        let how = DeleteParams::default();
        let _ = self.runtime.block_on(self.templates.delete(&self.name, &how));
        let _ = self.runtime.block_on(self.leases.delete(&self.name, &how));
        for pod in self.list() {
            let name = pod.metadata.name.unwrap_or_default();
            let _ = self.runtime.block_on(self.pods.delete(&name, &how.clone().grace_period(0)));
        }
    }
}

fn text(failure: &Failure) -> String {
    failure.text().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn a_pod_is_made_of_the_template_and_ends_with_its_grace_period() {
    let node = Node::new("life");
    let mut pods = node.launcher().unwrap();
    assert!(pods.readers().unwrap().is_empty());
    let name = pods.start().unwrap();
    assert!(name.starts_with(&node.name), "{name}");
    let pod = &node.list()[0];
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["app"], "siltstone");
    let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("PodTemplate", node.name.as_str()));
    assert!(!owner.uid.is_empty() && owner.controller == Some(true));
    assert_eq!(pods.readers().unwrap()[0].addresses, None);
    node.run();
    let found = &pods.readers().unwrap()[0];
    let addresses = found.addresses.clone().unwrap();
    assert_eq!(
        (addresses.requests.as_str(), addresses.figures.as_str()),
        ("10.0.0.1:6379", "10.0.0.1:6380")
    );
    pods.end(&name).unwrap();
    assert_eq!(node.list()[0].metadata.deletion_grace_period_seconds, Some(40));
    // It still answers, and is still there.
    assert!(pods.readers().unwrap()[0].end.is_none());
    node.run();
    assert!(pods.readers().unwrap().is_empty());
    pods.end(&name).unwrap();
    let stuck = pods.start().unwrap();
    pods.kill(&stuck).unwrap();
    assert!(node.list().is_empty());
}

#[test]
fn pods_that_fail_or_are_deleted_by_others_are_named() {
    let node = Node::new("failures");
    let mut pods = node.launcher().unwrap();
    let failed = pods.start().unwrap();
    node.set_status(
        &failed,
        json!({ "phase": "Failed", "reason": "Evicted", "message": "no memory" }),
    );
    let found = pods.readers().unwrap();
    assert_eq!(found[0].end.as_deref(), Some("Failed: no memory"));
    node.run();
    assert!(pods.readers().unwrap().is_empty());
    let evicted = pods.start().unwrap();
    node.run();
    node.runtime.block_on(node.pods.delete(&evicted, &DeleteParams::default())).unwrap();
    let found = pods.readers().unwrap();
    assert_eq!(found[0].end.as_deref(), Some("its pod is being deleted"));
}

/// The answer is that of a failed delete; a real server gives none on request.
#[test]
fn a_pod_that_cannot_be_deleted_keeps_no_round_from_the_others() {
    let node = Node::new("kept");
    let Some(server) = &node.server else { return };
    let load = Load { rate: 0, rounds: 0, published: Vec::new(), said: Vec::new() };
    let load = std::rc::Rc::new(std::cell::RefCell::new(load));
    let mut control = control(node.launcher().unwrap(), &load);
    let second = Duration::from_secs(1);
    for at in 0..3 {
        control.round(second * at);
        node.run();
    }
    let names: Vec<String> = node.list().into_iter().filter_map(|it| it.metadata.name).collect();
    let [first, other] = &names[..] else { panic!("{names:?}") };
    for name in &names {
        node.set_status(name, json!({ "phase": "Failed", "message": "no memory" }));
    }
    server.keep(&[first]);
    for at in 3..8 {
        control.round(second * at);
        node.run();
    }
    let left: Vec<String> = node.list().into_iter().filter_map(|it| it.metadata.name).collect();
    // The first one stays, and both have a successor.
    assert!(left.contains(first) && !left.contains(other) && left.len() == 3, "{left:?}");
    let trouble = format!("reader {first}: cannot delete pod {first}: the storage does not answer");
    assert!(
        load.borrow().said.iter().any(|it| it.starts_with(&trouble)),
        "{:?}",
        load.borrow().said
    );
    server.keep(&[]);
    control.round(second * 8);
    node.run();
    assert_eq!(node.list().len(), 2);
    // The end of a pod is asked for until the server takes it.
    let names: Vec<String> = node.list().into_iter().filter_map(|it| it.metadata.name).collect();
    server.keep(&[&names[0]]);
    control.end();
    for at in 9..16 {
        control.round(second * at);
        node.run();
    }
    assert!(!control.is_over());
    assert_eq!(node.list().len(), 1);
    server.keep(&[]);
    for at in 16..18 {
        control.round(second * at);
        assert!(node.list().iter().all(|it| it.metadata.deletion_grace_period_seconds == Some(40)));
        node.run();
    }
    control.round(second * 18);
    assert!(control.is_over() && node.list().is_empty());
}

#[test]
fn a_second_operator_is_refused_until_the_lease_ends() {
    let node = Node::new("lease");
    let mut first = node.launcher().unwrap();
    node.clock.0.store(1, Ordering::SeqCst);
    let refused = text(&node.launcher().err().unwrap());
    assert!(refused.contains("another operator") && refused.contains(&node.name), "{refused}");
    // The first one is not seen for a while.
    node.clock.0.store(15, Ordering::SeqCst);
    let mut second = node.launcher().unwrap();
    assert!(text(&first.readers().err().unwrap()).contains("another operator"));
    second.readers().unwrap();
    drop(first);
    node.clock.0.store(16, Ordering::SeqCst);
    assert!(node.launcher().is_err());
    // One that ends gives it back.
    drop(second);
    node.launcher().unwrap();
}

#[test]
fn a_template_that_is_wrong_or_not_there_is_named() {
    let node = Node::new("templates");
    node.describe(&["redis"]);
    let wrong = text(&node.launcher().err().unwrap());
    assert!(wrong.contains("no container port with the name metrics"), "{wrong}");
    node.runtime.block_on(node.templates.delete(&node.name, &DeleteParams::default())).unwrap();
    let lost = text(&node.launcher().err().unwrap());
    assert!(lost.contains("cannot read PodTemplate") && lost.contains("not found"), "{lost}");
    let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
    let nowhere = Pods::at(runtime().unwrap(), nowhere, "a", None, node.clock.clone());
    assert!(text(&nowhere.err().unwrap()).starts_with("cannot read lease a"));
}

/// Each pod that has an address serves a part of the load.
struct Load {
    rate: u64,
    rounds: u64,
    published: Vec<String>,
    said: Vec<String>,
}

impl Env for std::rc::Rc<std::cell::RefCell<Load>> {
    fn ask(&mut self, addresses: &[String]) -> Vec<Option<Figures>> {
        let mut load = self.borrow_mut();
        load.rounds += 1;
        let operations = load.rate * load.rounds / addresses.len().max(1) as u64;
        addresses.iter().map(|_| Some(Figures::of_operations(operations, 100))).collect()
    }

    fn publish(&mut self, readers: &[String]) -> Result<(), Failure> {
        self.borrow_mut().published = readers.to_vec();
        Ok(())
    }

    fn say(&mut self, text: &str) {
        self.borrow_mut().said.push(text.to_owned());
    }
}

/// The control loop of two pods.
fn control(launcher: Pods, load: &std::rc::Rc<std::cell::RefCell<Load>>) -> Control {
    let targets = Targets {
        min: 2,
        max: 4,
        operations: Some(1000.0),
        p99: None,
        up_cooldown: Duration::ZERO,
        down_window: Duration::from_secs(60),
    };
    let second = Duration::from_secs(1);
    let times = Times { start: second * 9, quiet: second * 2, drain: second * 9, end: second * 9 };
    Control::new(Box::new(launcher), Box::new(load.clone()), Decider::new(targets), times)
}

#[test]
fn an_operator_that_lost_its_lease_ends_and_deletes_no_pod() {
    let node = Node::new("lost");
    let load = Load { rate: 0, rounds: 0, published: Vec::new(), said: Vec::new() };
    let load = std::rc::Rc::new(std::cell::RefCell::new(load));
    let mut first = control(node.launcher().unwrap(), &load);
    // The pods start, and have no address yet.
    first.round(Duration::ZERO);
    assert_eq!(node.list().len(), 2);
    node.clock.0.store(20, Ordering::SeqCst);
    let mut second = control(node.launcher().unwrap(), &load);
    first.end();
    first.round(Duration::from_secs(1));
    assert!(first.is_over());
    assert!(node.list().iter().all(|it| it.metadata.deletion_timestamp.is_none()));
    second.round(Duration::from_secs(1));
    assert_eq!(node.list().len(), 2);
}

#[test]
fn pods_are_listed_while_they_serve_and_all_end_with_the_operator() {
    let node = Node::new("loop");
    let second = Duration::from_secs(1);
    let load = Load { rate: 0, rounds: 0, published: Vec::new(), said: Vec::new() };
    let load = std::rc::Rc::new(std::cell::RefCell::new(load));
    let mut control = control(node.launcher().unwrap(), &load);
    for at in 0..4 {
        control.round(second * at);
        node.run();
    }
    assert_eq!(load.borrow().published, ["10.0.0.1:6379", "10.0.0.2:6379"]);
    control.end();
    for at in 4..12 {
        control.round(second * at);
        node.run();
    }
    assert!(control.is_over() && node.list().is_empty());
    assert!(load.borrow().published.is_empty());
}
